#include "transport/tcp/tcp_parser.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

absl::Span<uint8_t> TcpParser::Room() {
  if (payload_left_ > 0) {
    if (!target_.empty()) return target_.subspan(target_.size() - payload_left_);
    return absl::MakeSpan(inbox_->dropped).first(std::min<uint64_t>(payload_left_, inbox_->dropped.size()));
  }
  const size_t limit = greeted_ ? kBufferBytes : sizeof(TcpPrefix);
  return absl::MakeSpan(buffer_).subspan(end_, limit - end_);
}

absl::Status TcpParser::Received(size_t bytes) {
  if (payload_left_ > 0) {
    TakePayload(bytes);
    return absl::OkStatus();
  }
  end_ += bytes;
  return ParseBuffered();
}

absl::Status TcpParser::ParseBuffered() {
  while (end_ - begin_ >= sizeof(TcpPrefix)) {
    const auto bytes = absl::MakeConstSpan(buffer_).subspan(begin_, end_ - begin_);
    const std::optional<TcpPrefix> prefix = ParseTcpPrefix(bytes);
    if (!prefix) return absl::InvalidArgumentError("receive: the prefix of a frame is malformed");
    const auto type = static_cast<TcpFrameType>(prefix->type);
    if (!greeted_) {
      if (type != TcpFrameType::kHello || prefix->number != inbox_->endpoint_id) {
        return absl::PermissionDeniedError("receive: the first frame is no hello to this endpoint");
      }
      greeted_ = true;
      begin_ += sizeof(TcpPrefix);
      continue;
    }
    if (type != TcpFrameType::kData || prefix->number != next_number_) {
      return absl::InvalidArgumentError(absl::StrCat("receive: frame of type ", prefix->type, " and number ",
                                                     prefix->number, ", want data number ", next_number_));
    }
    const size_t head_bytes = sizeof(TcpPrefix) + prefix->header_bytes;
    if (bytes.size() < head_bytes) break;
    begin_ += head_bytes;
    ++next_number_;
    Begin(*prefix, bytes.subspan(sizeof(TcpPrefix), prefix->header_bytes));
    const size_t buffered = std::min<uint64_t>(payload_left_, end_ - begin_);
    if (buffered > 0) {
      if (!target_.empty()) std::memcpy(target_.data(), buffer_.data() + begin_, buffered);
      begin_ += buffered;
      TakePayload(buffered);
    }
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {  // less than a head
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  return absl::OkStatus();
}

void TcpParser::Begin(const TcpPrefix& prefix, absl::Span<const uint8_t> header) {
  id_ = inbox_->next_id++;
  const absl::Span<uint8_t> target = inbox_->handler->OnHeader(id_, header, prefix.payload_bytes);
  if (prefix.payload_bytes == 0) {
    inbox_->counters->CountReceive(0);
    return;
  }
  payload_left_ = prefix.payload_bytes;
  if (target.size() == prefix.payload_bytes) {
    target_ = target;
    return;
  }
  // A span of another size is a mistake of the handler; writing into it would make that worse.
  inbox_->counters->CountDrop();
  if (!target.empty()) {
    inbox_->handler->OnPayload(
        id_, absl::InternalError(absl::StrCat("receive: the handler gave ", target.size(),
                                              " bytes for a payload of ", prefix.payload_bytes)));
  }
}

void TcpParser::TakePayload(size_t bytes) {
  payload_left_ -= bytes;
  if (payload_left_ > 0 || target_.empty()) return;
  inbox_->counters->CountReceive(target_.size());
  target_ = {};
  inbox_->handler->OnPayload(id_, absl::OkStatus());
}

void TcpParser::End(const absl::Status& reason) {
  if (target_.empty()) return;
  target_ = {};
  inbox_->handler->OnPayload(id_, reason);
}

}  // namespace aludel
