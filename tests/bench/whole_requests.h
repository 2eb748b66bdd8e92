#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/bench/request_bodies.h"

namespace aludel {

// What a hostile client writes into one connection of the gateway: a request, once or several times in a row.
struct WholeRequest {
  std::string kind;     // what it is made of: "tokenize: a long text"
  std::string method;   // "POST"
  std::string target;   // "/tokenize"
  std::string headers;  // further lines, each with its CRLF
  std::string body;
  bool keyed = true;       // with the gateway's key
  size_t chunk_bytes = 0;  // of a chunked body; 0: Content-Length
  std::string between;     // in every chunk's header: ";a=b"
  std::string trailers;    // lines behind the last chunk
  int times = 1;           // pipelined; the last one says "Connection: close"

  std::string Bytes(const std::string& key) const;
};

// Draws requests for every route of the gateway, and changes those that were found costly: a hill climb over
// bytes. The same seed and the same calls give the same requests.
class WholeRequests {
 public:
  WholeRequests(uint64_t seed, size_t max_bytes)
      : random_(seed), max_bytes_(max_bytes), bodies_(seed, max_bytes) {}

  // The kinds in turn.
  WholeRequest Next();
  // `request` with a few changes, pieces of `other` among them.
  WholeRequest Change(const WholeRequest& request, const WholeRequest& other);

 private:
  int64_t Up(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  // Sizes spread evenly over powers of two, up to `most`.
  size_t Size(size_t most);
  std::string Filled(size_t bytes);
  std::string Tokens(size_t count);
  WholeRequest Plain(const std::string& kind, const std::string& target);
  WholeRequest Posted(const std::string& kind, const std::string& target, const std::string& body);
  WholeRequest OfHead(int kind);
  WholeRequest OfBody(int kind);
  void ChangeText(std::string* text, const std::string& other, size_t most);

  std::mt19937_64 random_;
  const size_t max_bytes_;
  RequestBodies bodies_;
  int next_ = 0;
};

}  // namespace aludel
