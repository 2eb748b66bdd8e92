#include "server/http/http_reader.h"

#include <algorithm>
#include <boost/asio/post.hpp>

namespace aludel {

using boost::system::error_code;

void HttpReader::Start(std::weak_ptr<void> alive) {
  alive_ = std::move(alive);
  Handshake();
}

void HttpReader::Handshake() {
  if (closed_) return;
  switch (const Io io = socket_->Handshake()) {
    case Io::kDone:
      return owner_->OnOpened();
    case Io::kClosed:
      return owner_->OnReadFailed();
    default:
      socket_->Wait(io, [this, weak = alive_](const error_code& ec) {
        const auto alive = weak.lock();
        if (alive == nullptr) return;
        if (ec) return owner_->OnReadFailed();
        Handshake();
      });
  }
}

void HttpReader::Wait(Io io) {
  if (waiting_ || ended_ || closed_ || owner_->Room() == 0) return;
  waiting_ = true;
  auto readable = [this, weak = alive_](const error_code& ec) {
    const auto alive = weak.lock();
    if (alive == nullptr || closed_) return;
    waiting_ = false;
    if (ec) return owner_->OnReadFailed();
    OnReadable();
  };
  if (io == Io::kWaitRead && socket_->buffered()) {
    return boost::asio::post(*loop_, [readable = std::move(readable)] { readable(error_code()); });
  }
  socket_->Wait(io, std::move(readable));
}

void HttpReader::OnReadable() {
  // A wait that began with room may end without any.
  const size_t room = std::min(owner_->Room(), scratch_.size());
  if (room == 0) return;
  size_t size = 0;
  const Io io = socket_->Read(scratch_.data(), room, &size);
  if (io == Io::kClosed) {
    if (!socket_->reason().empty()) return owner_->OnReadFailed();
    ended_ = true;
    return owner_->OnInputEnd();
  }
  if (io != Io::kDone) return Wait(io);
  owner_->OnBytes(absl::string_view(scratch_.data(), size));
  Read();
}

}  // namespace aludel
