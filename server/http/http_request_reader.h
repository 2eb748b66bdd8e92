#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "server/http/http_body_budget.h"
#include "server/http/http_parser.h"

namespace aludel {

// Cuts what one client sends into requests, whose bodies are charged to a budget. Bytes behind a request wait here, up
// to a bound, until the next one is begun. Not thread-safe.
class HttpRequestReader {
 public:
  // Both must outlive this.
  HttpRequestReader(const HttpLimits* limits, HttpBodyBudget* budget) : limits_(limits), budget_(budget) {}

  // All requests are of `peer`.
  void Start(std::string peer) { peer_ = std::move(peer); }
  // How many bytes may be added now. Together with the parsed header less than 64 KiB wait, which is what a client
  // costs before its key is checked.
  size_t Room() const;
  void Add(absl::string_view bytes) { input_.append(bytes.data(), bytes.size()); }

  // Begins a request, where there is a byte of one.
  bool Begin();
  // Goes on with the one that was begun. kDone: Take() it. kError: error() has the answer, and the connection
  // cannot go on.
  HttpParser::State Go();
  // After kHeaderDone: the client waits for "100 Continue" before it sends the body.
  bool ExpectsContinue() const { return parser_->ExpectsContinue(); }
  // The request that was begun, as far as it is known; nothing follows it.
  HttpRequest Head() const;
  const HttpError& error() const { return error_; }
  // With its body's share of the budget, which `budget_owner` keeps alive.
  HttpRequest Take(std::shared_ptr<void> budget_owner);
  // Forgets the request that was begun and all bytes: where the next one begins is not known.
  void Abandon();
  // Gives memory back while there is nothing to parse. (Assigning an empty string would keep the capacity.)
  void Shrink() { input_.shrink_to_fit(); }

 private:
  const HttpLimits* const limits_;
  HttpBodyBudget* const budget_;
  std::string peer_;
  std::string input_;  // not parsed yet
  std::optional<HttpParser> parser_;
  std::chrono::steady_clock::time_point began_;
  bool in_body_ = false;
  HttpBodyBudget::Share body_share_;
  HttpError error_;
};

}  // namespace aludel
