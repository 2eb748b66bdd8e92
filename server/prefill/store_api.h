#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/codec.h"
#include "server/http/http_message.h"
#include "server/store/prefix_store.h"

namespace aludel {

// The operator's hold on a prefix store, over HTTP with JSON bodies: what is stored and for whom, and look up, prefetch,
// pin, unpin, clear and quotas (deploy/OPERATING.md). Answers requests with the token alone. Thread-safe; a call may
// take seconds, for the disk.
class StoreApi {
 public:
  static constexpr char kPath[] = "/store/";
  // Of a request: prompts are token ids.
  static constexpr size_t kMaxBodyBytes = 16 << 20;

  struct Options {
    PrefixStore* store = nullptr;
    std::array<uint8_t, 32> token_sha256 = {};
    // Null for an unknown name.
    std::function<const CodecSpec*(absl::string_view format)> find_format;
  };
  explicit StoreApi(Options options) : options_(std::move(options)) {}

  // The refusal of a request for its token, path or method, which needs no body. Does not block.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) const;
  // Nothing for a path that is not below kPath.
  std::optional<HttpResponse> Answer(const HttpRequest& request) const;

 private:
  const Options options_;
};

// From 64 hexadecimal digits.
absl::StatusOr<std::array<uint8_t, 32>> ParseSha256(absl::string_view hex);

}  // namespace aludel
