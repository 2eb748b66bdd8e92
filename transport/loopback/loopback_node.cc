#include "transport/loopback/loopback_node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Without the node's mutex, so that `done` may send again.
void FailAll(std::deque<LoopbackMessage>&& messages, StatCounters* sender, const absl::Status& status) {
  for (const LoopbackMessage& message : messages) {
    sender->CountSend(status, message.payload.size());
    message.done(status);
  }
}

}  // namespace

LoopbackNode::LoopbackNode(MessageHandler* handler, StatCounters* counters)
    : handler_(handler), counters_(counters), thread_([this] { Run(); }) {}

LoopbackNode::~LoopbackNode() { Shutdown(); }

bool LoopbackNode::open() const {
  absl::MutexLock lock(&mutex_);
  return open_;
}

absl::Status LoopbackNode::AddLink(LoopbackLink* link) {
  absl::MutexLock lock(&mutex_);
  if (!open_) return absl::UnavailableError("connect: the loopback peer has been closed");
  links_.push_back(link);
  return absl::OkStatus();
}

void LoopbackNode::RemoveLink(LoopbackLink* link) {
  std::deque<LoopbackMessage> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    links_.erase(std::remove(links_.begin(), links_.end(), link), links_.end());
    while (link->delivering) changed_.Wait(&mutex_);
    cancelled = std::exchange(link->queue, {});
  }
  FailAll(std::move(cancelled), link->sender_counters, absl::CancelledError("send: the channel was closed"));
}

void LoopbackNode::Send(LoopbackLink* link, LoopbackMessage message) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (!open_) {
      refused = absl::UnavailableError("send: the peer is gone");
    } else if (link->unfinished >= link->max_unfinished) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("send: ", link->max_unfinished, " sends of this channel are unfinished"));
    } else {
      ++link->unfinished;
      message.fate = link->emulator.Admit(MonotonicNow(), message.payload);
      if (message.fate.kind != LinkFate::kWell) link->sender_counters->CountEmulatedFault();
      link->queue.push_back(std::move(message));
      changed_.SignalAll();
      return;
    }
  }
  link->sender_counters->CountSend(refused, message.payload.size());
  message.done(refused);
}

void LoopbackNode::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    if (!open_) return;
    open_ = false;
    changed_.SignalAll();
  }
  thread_.join();
  FailQueuedSends();
}

void LoopbackNode::FailQueuedSends() {
  // RemoveLink waits for a link that is delivering: a channel does not end before its sends.
  const auto has_messages = [](const LoopbackLink* link) { return !link->queue.empty(); };
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto next = std::find_if(links_.begin(), links_.end(), has_messages);
    if (next == links_.end()) return;
    LoopbackLink* const link = *next;
    std::deque<LoopbackMessage> messages = std::exchange(link->queue, {});
    link->delivering = true;
    mutex_.Unlock();
    FailAll(std::move(messages), link->sender_counters, absl::UnavailableError("send: the peer is gone"));
    mutex_.Lock();
    link->delivering = false;
    changed_.SignalAll();
  }
}

LoopbackLink* LoopbackNode::NextLink() const {
  LoopbackLink* first = nullptr;
  for (LoopbackLink* link : links_) {
    if (link->queue.empty()) continue;
    if (first == nullptr || link->queue.front().fate.due < first->queue.front().fate.due) first = link;
  }
  return first;
}

void LoopbackNode::Run() {
  mutex_.Lock();
  while (open_) {
    LoopbackLink* link = NextLink();
    if (link == nullptr) {
      changed_.Wait(&mutex_);
      continue;
    }
    const absl::Duration wait = link->queue.front().fate.due - MonotonicNow();
    if (wait > absl::ZeroDuration()) {
      changed_.WaitWithTimeout(&mutex_, wait);
      continue;
    }
    LoopbackMessage message = std::move(link->queue.front());
    link->queue.pop_front();
    link->delivering = true;
    mutex_.Unlock();
    switch (message.fate.kind) {
      case LinkFate::kLost:
        break;
      case LinkFate::kCorrupt:
        Deliver(message.header, message.fate.corrupted);
        break;
      case LinkFate::kDuplicate:
        Deliver(message.header, message.payload);
        [[fallthrough]];
      case LinkFate::kWell:
        Deliver(message.header, message.payload);
    }
    link->sender_counters->CountSend(absl::OkStatus(), message.payload.size());
    mutex_.Lock();
    --link->unfinished;  // first: `done` may send the next message
    mutex_.Unlock();
    message.done(absl::OkStatus());
    mutex_.Lock();
    link->delivering = false;
    changed_.SignalAll();
  }
  mutex_.Unlock();
}

void LoopbackNode::Deliver(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload) {
  const MessageId id = next_id_++;
  const absl::Span<uint8_t> target = handler_->OnHeader(id, header, payload.size());
  if (target.size() != payload.size()) {
    counters_->CountDrop();
    if (!target.empty()) {
      handler_->OnPayload(id, absl::InternalError(absl::StrCat("receive: the handler gave ", target.size(),
                                                               " bytes for a payload of ", payload.size())));
    }
    return;
  }
  counters_->CountReceive(target.size());
  if (target.empty()) return;
  std::memcpy(target.data(), payload.data(), target.size());
  handler_->OnPayload(id, absl::OkStatus());
}

}  // namespace aludel
