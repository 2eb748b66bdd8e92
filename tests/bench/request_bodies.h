#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace aludel {

// A body that a hostile client might send.
struct RequestBody {
  std::string kind;  // what it is made of: "schema: branches of branches"
  std::string text;  // JSON, for POST /v1/chat/completions
};

// Makes bodies from a seed, each of one kind and of up to about `max_bytes`: what parsers, schemas,
// templates, tokenizers and samplers may find expensive. The same seed gives the same bodies.
class RequestBodies {
 public:
  RequestBodies(uint64_t seed, size_t max_bytes) : random_(seed), max_bytes_(max_bytes) {}

  // The kinds in turn.
  RequestBody Next();

 private:
  int64_t Up(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  // How many of something that takes `bytes` each, sizes spread evenly over powers of two.
  int Count(size_t bytes);
  std::string Chat(const std::string& fields, const std::string& content = "\"hi\"");
  std::string Format(const std::string& schema);
  std::string Tools(const std::string& parameters);
  std::string Name();
  std::string Text(size_t bytes);
  std::string Scalar();
  std::string Value(int depth);
  std::string Schema(int depth, int definitions);
  std::string SchemaOfOneKind(int kind, std::string* name);

  std::mt19937_64 random_;
  const size_t max_bytes_;
  int next_ = 0;
};

}  // namespace aludel
