#include "server/prefill/frame_producer.h"

#include <utility>

namespace aludel {

class FrameProducer::Listener : public SequenceListener {
 public:
  Listener(std::shared_ptr<FrameProducer> producer, std::shared_ptr<ChunkRecorder> sink, const Part& part)
      : producer_(std::move(producer)), sink_(std::move(sink)), part_(part) {}

  void OnToken(const TokenEvent&) override {}
  void OnDone(const absl::Status& status, const SequenceResult& result) override {
    producer_->OnPartDone(part_, status, result);
  }

 private:
  const std::shared_ptr<FrameProducer> producer_;
  const std::shared_ptr<ChunkRecorder> sink_;  // the engine's
  const Part part_;
};

namespace {

void Add(const SequenceTimes& times, SequenceTimes* sum) {
  sum->queue += times.queue;
  sum->prefill += times.prefill;
  sum->await += times.await;
  sum->encode += times.encode;
}

}  // namespace

void FrameProducer::Start() {
  PrefixFeed::Prompt prompt = spec_.prompt;
  prompt.on_found = [self = shared_from_this()](const PrefixFeed::Found& found) { self->OnFound(found); };
  const auto feed = std::make_shared<PrefixFeed>(spec_.feeding, std::move(prompt));
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    encoded_from_ = static_cast<int64_t>(spec_.prompt.tokens.size());
    stopped = status_;
    feed_ = feed;
  }
  if (!stopped.ok()) feed->Stop(stopped);
  feed->Start(
      spec_.stored, spec_.has_room,
      [self = shared_from_this()](absl::StatusOr<PrefixFeed::Sent> sent) { self->OnFed(std::move(sent)); });
}

void FrameProducer::OnRoom() {
  std::shared_ptr<PrefixFeed> feed;
  bool computing = false;
  {
    absl::MutexLock lock(&mutex_);
    feed = feed_;
    computing = part_ != nullptr;
  }
  if (feed != nullptr) feed->Resume();
  // The engine ends its sequences before it goes, and then there is no part.
  if (computing) spec_.nudge();
}

void FrameProducer::Stop(const absl::Status& reason) {
  std::shared_ptr<PrefixFeed> feed;
  SequenceId sequence = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) status_ = reason;
    feed = feed_;
    sequence = sequence_;
  }
  if (feed != nullptr) feed->Stop(reason);
  if (sequence != 0) spec_.cancel(sequence, reason);
}

void FrameProducer::OnFound(const PrefixFeed::Found& found) {
  Part part;
  std::shared_ptr<ChunkRecorder> recorder;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    flight_ = found.flight;
    part = NewPart(found.end, /*waits=*/!found.in_memory);
    recorder = part_;
  }
  Submit(part, std::move(recorder));
}

void FrameProducer::OnFed(absl::StatusOr<PrefixFeed::Sent> sent) {
  if (!sent.ok()) {
    Stop(sent.status());
    sent.emplace();
  }
  const StorePosition end = sent->end;
  std::shared_ptr<ChunkRecorder> rest;
  SequenceId withdrawn = 0;
  {
    absl::MutexLock lock(&mutex_);
    feed_ = nullptr;
    fed_ = true;
    front_ = end;
    if (end.tokens >= encoded_from_) {
      rest = rest_;
    } else if (part_ != nullptr && part_->Withdraw()) {
      withdrawn_ = true;
      withdrawn = sequence_;
    }
    produced_.stored = end;
  }
  if (rest != nullptr) rest->SetFront(end);  // for those who wait: the engine may be long at the rest
  if (withdrawn != 0) spec_.cancel(withdrawn, ChunkRecorder::Withdrawn());
  GoOn();
}

FrameProducer::Part FrameProducer::NewPart(const StorePosition& begin, bool waits) {
  const Part part{begin.tokens, encoded_from_};
  part_ = std::make_shared<ChunkRecorder>(spec_.computed, ChunkRecorder::Spec{.store = spec_.store,
                                                                              .codec = spec_.prompt.codec,
                                                                              .prompt = spec_.prompt.tokens,
                                                                              .begin = begin,
                                                                              .flight = flight_,
                                                                              .waits = waits});
  if (part.end == static_cast<int64_t>(spec_.prompt.tokens.size())) rest_ = part_;
  encoded_from_ = part.begin;
  return part;
}

void FrameProducer::Submit(const Part& part, std::shared_ptr<ChunkRecorder> recorder) {
  ChunkRecorder* const sink = recorder.get();
  const auto listener = std::make_shared<Listener>(shared_from_this(), std::move(recorder), part);
  const absl::StatusOr<SequenceId> sequence = spec_.begin(part, sink, listener);
  if (!sequence.ok()) return OnPartDone(part, sequence.status(), {});
  absl::Status unwanted;
  {
    absl::MutexLock lock(&mutex_);
    if (part_.get() != sink) return;  // it has ended already
    sequence_ = *sequence;
    unwanted = !status_.ok() ? status_ : withdrawn_ ? ChunkRecorder::Withdrawn() : absl::OkStatus();
  }
  if (!unwanted.ok()) spec_.cancel(*sequence, unwanted);
}

void FrameProducer::OnPartDone(const Part& part, const absl::Status& status, const SequenceResult& result) {
  std::shared_ptr<PrefixFeed> feed;
  {
    absl::MutexLock lock(&mutex_);
    const std::shared_ptr<ChunkRecorder> recorder = std::exchange(part_, nullptr);
    sequence_ = 0;
    Add(result.times, &produced_.times);
    if (std::exchange(withdrawn_, false) && status == ChunkRecorder::Withdrawn()) {
      encoded_from_ = part.end;
      rest_ = nullptr;
    } else if (status.ok()) {
      produced_.computed = true;
      produced_.computed_tokens += part.end - result.cached_tokens;
      produced_.cached_tokens = result.cached_tokens;
      if (recorder != rest_) front_ = recorder->end();
    } else {
      if (status_.ok()) status_ = status;
      feed = feed_;
    }
  }
  spec_.part_ended();
  if (feed != nullptr) feed->Stop(status);
  GoOn();
}

void FrameProducer::GoOn() {
  std::optional<Part> next;
  std::shared_ptr<ChunkRecorder> recorder;
  {
    absl::MutexLock lock(&mutex_);
    if (!fed_ || part_ != nullptr || over_) return;
    if (status_.ok() && front_.tokens < encoded_from_) {
      next = NewPart(front_, /*waits=*/false);
      recorder = part_;
    } else {
      over_ = true;
    }
  }
  if (next) return Submit(*next, std::move(recorder));
  End();
}

void FrameProducer::End() {
  absl::Status status;
  Produced produced;
  std::shared_ptr<ChunkRecorder> rest;
  StorePosition front;
  std::shared_ptr<Flights::Flight> flight;  // ends outside the lock
  {
    absl::MutexLock lock(&mutex_);
    status = status_;
    produced = produced_;
    rest = std::move(rest_);
    front = front_;
    flight = std::move(flight_);
  }
  produced.end = front;
  if (rest != nullptr) {
    rest->SetFront(front);
    rest->End();
    produced.end = rest->end();
  }
  flight = nullptr;
  std::exchange(spec_.done, nullptr)(status, produced);
}

}  // namespace aludel
