#include "server/store/feed/prefix_feed.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/status_macros.h"
#include "server/store/cut_frames.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Chunks that are read before their turn: enough to keep a disk busy, and few to have in memory for each run.
constexpr size_t kReadAhead = 4;
// How long a chunk may take to be read before its tokens are computed instead, and how long all that is left of a
// prompt may be waited for at least; beyond, as long as computing it would take.
constexpr absl::Duration kReadLimit = absl::Seconds(1);
constexpr absl::Duration kReadSlack = absl::Milliseconds(100);

}  // namespace

void PrefixFeed::Start(std::shared_ptr<FrameSink> sink, HasRoom has_room,
                       std::function<void(absl::StatusOr<Sent>)> done) {
  sink_ = std::move(sink);
  has_room_ = std::move(has_room);
  found_ = context_.store->Begin(*prompt_.codec, prompt_.salt);
  root_ = found_.KeyOfPlanes();
  sent_ = found_;
  {
    absl::MutexLock lock(&mutex_);
    done_ = std::move(done);
    running_ = true;
  }
  Run();
}

void PrefixFeed::Run() {
  const std::shared_ptr<PrefixFeed> self = shared_from_this();  // `done` may drop the last other one
  absl::StatusOr<bool> all = false;
  std::function<void(absl::StatusOr<Sent>)> done;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      resumed_ = false;
      all = stopped_.ok() ? absl::StatusOr<bool>(false) : stopped_;
    }
    if (all.ok()) all = Go();
    absl::MutexLock lock(&mutex_);
    if (all.ok() && !*all) {
      if (resumed_ || !stopped_.ok()) continue;
      running_ = false;
      return;
    }
    std::swap(done, done_);
    break;
  }
  sink_ = nullptr;
  chunks_.clear();  // what is still to be read of them is not wanted
  if (!all.ok()) {
    flight_ = nullptr;
    return done(all.status());
  }
  counts_.tokens_per_second = prompt_.tokens_per_second;
  counts_.waited = read_waited_ + remote_waited_;
  context_.store->CountLookup(counts_, static_cast<int64_t>(prompt_.tokens.size()));
  done(Sent{sent_, std::move(flight_)});
}

void PrefixFeed::Resume() {
  absl::MutexLock lock(&mutex_);
  resumed_ = true;
  if (running_ || done_ == nullptr) return;
  running_ = true;
  context_.timer->At(MonotonicNow(), [self = shared_from_this()] { self->Run(); });
}

void PrefixFeed::Stop(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_.ok()) stopped_ = reason;
  }
  Resume();
}

void PrefixFeed::LookAgain() {
  {
    absl::MutexLock lock(&mutex_);
    look_again_ = true;
  }
  Resume();
}

absl::StatusOr<bool> PrefixFeed::Go() {
  for (;;) {
    const bool gave_up = gave_up_;
    if (Look()) Announce();
    ALUDEL_ASSIGN_OR_RETURN(const bool sent, SendFound());
    if (gave_up_ && !gave_up) continue;
    if (!sent || !looked_) return false;
    if (found_.tokens == static_cast<int64_t>(prompt_.tokens.size())) flight_ = nullptr;
    return true;
  }
}

bool PrefixFeed::Look() {
  if (looked_) return true;
  {
    absl::MutexLock lock(&mutex_);
    // Room for a frame is no reason to look up the prompt again.
    if (look_waits_ && !look_again_) return false;
    look_again_ = false;
  }
  look_waits_ = true;
  while (found_.tokens < static_cast<int64_t>(prompt_.tokens.size())) {
    std::vector<StoredChunk> chunks;
    if (!gave_up_) chunks = context_.store->Find(prompt_.tokens, prompt_.max_age, &found_);
    if (!chunks.empty()) {
      Add(std::move(chunks));
      // Unless what stands in front of them is at the remote still.
      if (flight_ != nullptr && !AskedRemote()) flight_->Advance(found_.tokens);
    } else if (!joined_) {
      joined_ = Join();
      if (!joined_) return false;
    } else if (gave_up_ || AskedRemote()) {
      break;
    } else {
      // Not before: what others wait for is fetched once.
      const size_t here = chunks_.size();
      if (!AskRemote()) return false;
      if (chunks_.size() == here) break;
    }
  }
  looked_ = true;
  return true;
}

void PrefixFeed::Announce() {
  if (announced_ || found_.tokens == static_cast<int64_t>(prompt_.tokens.size())) return;
  bool in_memory = true;
  const Item* remote = nullptr;
  for (const std::shared_ptr<Item>& item : chunks_) {
    in_memory = in_memory && item->from_memory();
    if (remote == nullptr && item->chunk.remote) remote = item.get();
  }
  if (remote != nullptr) {
    absl::MutexLock lock(&mutex_);
    if (!remote->begun && remote->frames == nullptr) return;
  }
  announced_ = true;
  prompt_.on_found(Found{found_, in_memory, flight_});
}

void PrefixFeed::Add(std::vector<StoredChunk> chunks) {
  for (StoredChunk& chunk : chunks) chunks_.push_back(std::make_shared<Item>(std::move(chunk)));
}

bool PrefixFeed::AskRemote() {
  const absl::Time now = MonotonicNow();
  if (remote_until_ == absl::InfiniteFuture()) {
    const auto on_found = [weak = weak_from_this()](std::vector<StoredChunk> chunks) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      {
        absl::MutexLock lock(&self->mutex_);
        self->at_remote_ = std::move(chunks);
      }
      self->LookAgain();
    };
    // A hit saves no more than that.
    const absl::Duration patience = ComputingFrom(found_.tokens);
    if (!context_.store->FindRemote(prompt_.tokens, prompt_.max_age, found_, on_found, patience)) {
      remote_until_ = absl::InfinitePast();
      return true;
    }
    remote_since_ = now;
    remote_patience_ = std::min(patience, context_.store->remote_wait());
    remote_until_ = now + remote_patience_;
    context_.timer->At(remote_until_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->LookAgain();
    });
  }
  std::optional<std::vector<StoredChunk>> found;
  {
    absl::MutexLock lock(&mutex_);
    found.swap(at_remote_);
  }
  if (!found.has_value() && now < remote_until_) return false;
  remote_waited_ = now - remote_since_;
  remote_until_ = absl::InfinitePast();
  if (!found.has_value()) {
    // One that had less time than others get is not to blame.
    if (remote_patience_ == context_.store->remote_wait()) {
      context_.store->CountLateRemote(PrefixStore::RemoteWork::kFind);
    }
    return true;
  }
  // Meanwhile another run may have stored some of it, which is sent: of use is what follows that.
  const auto next = std::find_if(found->begin(), found->end(), [this](const StoredChunk& chunk) {
    return chunk.token_begin == found_.tokens;
  });
  if (next != found->begin() && std::prev(next)->end.key != found_.key) return true;
  found->erase(found->begin(), next);
  if (!found->empty()) found_ = found->back().end;
  Add(*std::move(found));
  return true;
}

absl::StatusOr<bool> PrefixFeed::SendFound() {
  while (!chunks_.empty()) {
    ReadAhead();
    const StoredFrames frames = FirstFrames();
    if (frames == nullptr && chunks_.empty()) break;
    if (frames == nullptr) return false;
    for (; frame_ < frames->size(); ++frame_) {
      const StoredFrame& frame = (*frames)[frame_];
      absl::Span<const uint8_t> code = frame.payload;
      if (found_.planes > 0) {
        ALUDEL_ASSIGN_OR_RETURN(code, TruncatePlanes(frame.payload, found_.planes));
      }
      if (!has_room_(code.size())) return false;
      ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(code.size()));
      std::copy(code.begin(), code.end(), payload.begin());
      ALUDEL_RETURN_IF_ERROR(sink_->Commit(frame.coverage, code.size()));
    }
    const Item& item = *chunks_.front();
    if (!item.from_memory()) {
      uint64_t& bytes = item.chunk.remote ? counts_.remote_bytes : counts_.disk_bytes;
      for (const StoredFrame& frame : *frames) bytes += frame.payload.size();
    }
    (item.from_memory()  ? counts_.memory_tokens
     : item.chunk.remote ? counts_.remote_tokens
                         : counts_.disk_tokens) += item.chunk.end.tokens - sent_.tokens;
    sent_ = item.chunk.end;
    if (flight_ != nullptr) flight_->Advance(sent_.tokens);  // what came from the remote is in memory now
    chunks_.pop_front();
    frame_ = 0;
  }
  return true;
}

void PrefixFeed::ReadAhead() {
  for (size_t i = 0; i < std::min(kReadAhead, chunks_.size()); ++i) {
    const std::shared_ptr<Item>& item = chunks_[i];
    if (item->from_memory() || item->asked) continue;
    item->asked = true;
    const std::weak_ptr<Item> wanted = item;
    const auto on_read = [weak = weak_from_this(), wanted](StoredFrames frames) {
      const auto self = weak.lock();
      const auto item = wanted.lock();
      if (self == nullptr || item == nullptr) return;
      {
        absl::MutexLock lock(&self->mutex_);
        item->read = true;
        item->frames = std::move(frames);
      }
      self->Resume();
    };
    const auto on_begun = [weak = weak_from_this(), wanted] {
      const auto self = weak.lock();
      const auto item = wanted.lock();
      if (self == nullptr || item == nullptr) return;
      {
        absl::MutexLock lock(&self->mutex_);
        item->begun = true;
      }
      self->Resume();
    };
    context_.store->Load(
        item->chunk, prompt_.tokens, on_read, [wanted] { return !wanted.expired(); }, on_begun);
  }
}

StoredFrames PrefixFeed::FirstFrames() {
  const Item& item = *chunks_.front();
  const absl::Time now = MonotonicNow();
  StoredFrames frames;
  bool read = false;
  {
    absl::MutexLock lock(&mutex_);
    frames = item.frames;
    read = item.read;
  }
  if (frames == nullptr && !read) {
    if (read_wait_since_ == absl::InfiniteFuture()) {
      read_wait_since_ = now;
      read_wait_until_ = now + ReadLimit();
      context_.timer->At(read_wait_until_, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Resume();
      });
    }
    if (now < read_wait_until_) return nullptr;
    if (item.chunk.remote) {
      context_.store->CountLateRemote(PrefixStore::RemoteWork::kLoad);
    } else {
      context_.store->CountLateRead();
    }
  }
  if (read_wait_since_ != absl::InfiniteFuture()) {
    read_waited_ += now - read_wait_since_;
    read_wait_since_ = absl::InfiniteFuture();
  }
  // Before its first frame: what is no planes is of no use.
  const bool usable =
      frames != nullptr && (found_.planes == 0 || frame_ > 0 || CutBytes(*frames, found_.planes) > 0);
  if (usable) return frames;
  gave_up_ = true;
  looked_ = false;
  look_waits_ = false;
  found_ = sent_;
  chunks_.clear();
  return nullptr;
}

absl::Duration PrefixFeed::ReadLimit() const {
  const absl::Duration all = kReadSlack + ComputingFrom(sent_.tokens) - read_waited_;
  return std::clamp(all, absl::ZeroDuration(), kReadLimit);
}

absl::Duration PrefixFeed::ComputingFrom(int64_t tokens) const {
  if (prompt_.tokens_per_second <= 0) return absl::InfiniteDuration();
  const auto left = static_cast<double>(static_cast<int64_t>(prompt_.tokens.size()) - tokens);
  return absl::Seconds(left / prompt_.tokens_per_second);
}

bool PrefixFeed::Join() {
  if (!prompt_.stores) return true;
  const absl::Time now = MonotonicNow();
  // What nothing stored may serve, nothing that another run stores may either.
  if (gave_up_ || now >= waits_until_ || prompt_.max_age <= absl::ZeroDuration() ||
      !context_.store->enabled()) {
    flight_ = context_.flights->Begin(root_, prompt_.tokens, found_.tokens);
    return true;
  }
  const auto look_again = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->LookAgain();
  };
  flight_ = context_.flights->Join(root_, prompt_.tokens, found_.tokens, look_again, &known_);
  if (flight_ != nullptr) return true;
  prompt_.on_wait(static_cast<int64_t>(prompt_.tokens.size()) - known_.shared);
  if (waits_until_ == absl::InfiniteFuture()) {
    waits_until_ = now + prompt_.patience;
    context_.timer->At(waits_until_, look_again);
  }
  return false;
}

}  // namespace aludel
