#include "server/gateway/openai/completion_fan.h"

#include <algorithm>
#include <utility>

namespace aludel {
namespace {

// What is told of several prompts as of one: sums, and the first one's times.
void Merge(const v1::Started& one, v1::Started* all) {
  if (one.plan() != all->plan()) all->set_plan("mixed");
  if (one.format() != all->format()) all->set_format("mixed");
  all->set_payload_bytes(all->payload_bytes() + one.payload_bytes());
  all->set_raw_bytes(all->raw_bytes() + one.raw_bytes());
  all->set_handed_over_tokens(all->handed_over_tokens() + one.handed_over_tokens());
  all->set_cached_tokens(all->cached_tokens() + one.cached_tokens());
  if (all->fallback_reason().empty()) all->set_fallback_reason(one.fallback_reason());
}

}  // namespace

// One of several prompts.
class CompletionFan::Part : public GenerateObserver {
 public:
  Part(std::shared_ptr<CompletionFan> fan, size_t prompt, uint32_t choices)
      : fan_(std::move(fan)), prompt_(prompt), choices_(choices) {}

  void OnStarted(const v1::Started& started) override {
    absl::MutexLock lock(&fan_->exchange_mutex_);
    if (std::exchange(fan_->any_started_, true)) {
      Merge(started, &fan_->started_);
    } else {
      fan_->started_ = started;
    }
    fan_->exchange_->OnStarted(prompt_, fan_->started_);
  }
  void OnPromptLogprobs(const v1::PromptLogprobs& piece) override {
    absl::MutexLock lock(&fan_->exchange_mutex_);
    fan_->exchange_->OnPromptLogprobs(prompt_, piece);
  }
  bool OnToken(const v1::Token& token) override {
    if (token.choice() >= choices_) return true;  // from a server that breaks the protocol
    v1::Token moved = token;
    moved.set_choice(Moved(token.choice()));
    absl::MutexLock lock(&fan_->exchange_mutex_);
    return fan_->exchange_->OnToken(moved);
  }
  void OnFinished(const v1::Finished& finished) override {
    if (finished.choice() >= choices_) return;
    v1::Finished moved = finished;
    moved.set_choice(Moved(finished.choice()));
    absl::MutexLock lock(&fan_->exchange_mutex_);
    fan_->exchange_->OnFinished(moved);
  }
  void OnEnd(const grpc::Status& status) override { fan_->Ended(prompt_, status); }
  bool Restart() override { return false; }

 private:
  uint32_t Moved(uint32_t choice) const { return static_cast<uint32_t>(prompt_) * choices_ + choice; }

  const std::shared_ptr<CompletionFan> fan_;
  const size_t prompt_;
  const uint32_t choices_;
};

CompletionFan::CompletionFan(Router* router, Router::Request request,
                             std::vector<std::vector<int32_t>> prompts, int at_once,
                             std::shared_ptr<CompletionExchange> exchange)
    : router_(router),
      request_(std::move(request)),
      prompts_(std::move(prompts)),
      at_once_(at_once),
      exchange_(std::move(exchange)),
      calls_(prompts_.size()),
      ended_(prompts_.size()) {}

Router::Request CompletionFan::RequestOf(size_t prompt) {
  Router::Request request = request_;
  const std::vector<int32_t> ids = std::exchange(prompts_[prompt], {});
  request.message.mutable_prompt()->Assign(ids.begin(), ids.end());
  return request;
}

void CompletionFan::Advance() {
  for (;;) {
    size_t prompt;
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_ || running_ >= at_once_ || next_ >= calls_.size()) return;
      prompt = next_++;
      ++running_;
    }
    const uint32_t choices = std::max<uint32_t>(1, request_.message.sampling().choices());
    auto call =
        router_->Generate(RequestOf(prompt), std::make_shared<Part>(shared_from_this(), prompt, choices));
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      // It may have ended already, on another thread.
      if (ended_[prompt] == 0) calls_[prompt] = call;
      cancelled = cancelled_;
    }
    if (cancelled) call->Cancel();
  }
}

void CompletionFan::Ended(size_t prompt, const grpc::Status& status) {
  bool last;
  {
    absl::MutexLock lock(&mutex_);
    ended_[prompt] = 1;
    calls_[prompt].reset();
    --running_;
    if (!status.ok() && status_.ok()) status_ = status;
  }
  if (status.ok()) {
    Advance();
  } else {
    Cancel();
  }
  grpc::Status all;
  {
    absl::MutexLock lock(&mutex_);
    last = running_ == 0 && (cancelled_ || next_ == calls_.size()) && !std::exchange(finished_, true);
    all = status_;
    if (all.ok() && next_ < calls_.size()) {
      all = grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone");
    }
  }
  if (!last) return;
  absl::MutexLock lock(&exchange_mutex_);
  exchange_->OnEnd(all);
}

void CompletionFan::Cancel() {
  std::vector<std::shared_ptr<GenerateCall>> running;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    running = calls_;
  }
  for (const auto& call : running) {
    if (call != nullptr) call->Cancel();
  }
}

}  // namespace aludel
