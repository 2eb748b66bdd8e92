#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "server/http/http_message.h"
#include "server/store/control/operator_token.h"
#include "server/store/control/store_commands.h"

namespace aludel {

// StoreCommands over HTTP with JSON bodies (deploy/OPERATING.md). Answers requests with the token alone. Thread-safe; a
// call may take seconds, for the disk or a remote.
class StoreApi {
 public:
  static constexpr char kPath[] = "/store/";
  // Of a request: prompts are token ids.
  static constexpr size_t kMaxBodyBytes = 16 << 20;

  struct Options {
    StoreCommands commands;
    TokenHash token_sha256 = {};
  };
  explicit StoreApi(Options options) : options_(std::move(options)) {}

  // The refusal of a request for its token, path or method, which needs no body. Does not block.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) const;
  // Nothing for a path that is not below kPath.
  std::optional<HttpResponse> Answer(const HttpRequest& request) const;

 private:
  const Options options_;
};

}  // namespace aludel
