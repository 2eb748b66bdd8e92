#include "server/http/http_request_reader.h"

#include <algorithm>
#include <utility>

namespace aludel {
namespace {

// Bytes that may wait to be parsed: of a header, or of further requests behind a running exchange. When they are full,
// reading stops until there is room, and a client that goes away is noticed by the next write instead.
constexpr size_t kMaxInputBytes = 16 << 10;

}  // namespace

size_t HttpRequestReader::Room() const {
  if (in_body_) return SIZE_MAX;  // the parser takes a body as it comes
  const size_t most = std::max(kMaxInputBytes, limits_->max_header_bytes);
  return most - std::min(most, input_.size());
}

bool HttpRequestReader::Begin() {
  // Some clients end a body with a line break that belongs to nothing.
  input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
  if (input_.empty()) return false;
  parser_.emplace(*limits_);
  began_ = std::chrono::steady_clock::now();
  body_share_ = HttpBodyBudget::Share(budget_);
  return true;
}

HttpParser::State HttpRequestReader::Go() {
  size_t consumed = 0;
  const HttpParser::State state = parser_->Feed(input_, &consumed);
  input_.erase(0, consumed);
  if (state == HttpParser::State::kError) {
    error_ = parser_->error();
  } else if (!body_share_.GrowTo(parser_->body_bytes())) {
    error_ = {503, "other requests' bodies take all memory that is there for them", 1};
    return HttpParser::State::kError;
  }
  in_body_ = in_body_ || state == HttpParser::State::kHeaderDone;
  return state;
}

HttpRequest HttpRequestReader::Head() const {
  HttpRequest head = parser_->Head();
  head.peer = peer_;
  head.keep_alive = false;
  return head;
}

HttpRequest HttpRequestReader::Take(std::shared_ptr<void> budget_owner) {
  HttpRequest request = parser_->Release();
  parser_.reset();
  in_body_ = false;
  if (!request.body.empty()) {
    request.body_share =
        std::make_shared<HttpBodyHold>(HttpBodyHold{std::move(budget_owner), std::move(body_share_)});
  }
  request.peer = peer_;
  request.began = began_;
  request.received = std::chrono::steady_clock::now();
  return request;
}

void HttpRequestReader::Abandon() {
  parser_.reset();
  in_body_ = false;
  body_share_ = {};
  input_.clear();
}

}  // namespace aludel
