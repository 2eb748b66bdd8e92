#include "server/gateway/openai/answer/completion_fan.h"

#include <algorithm>
#include <utility>

#include "server/rpc/hopeless.h"

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
  all->set_stored_tokens(all->stored_tokens() + one.stored_tokens());
  if (all->fallback_reason().empty()) all->set_fallback_reason(one.fallback_reason());
}

}  // namespace

// One of several prompts.
class CompletionFan::Part : public GenerateObserver {
 public:
  Part(std::shared_ptr<CompletionFan> fan, size_t prompt, uint32_t choices)
      : fan_(std::move(fan)), prompt_(prompt), choices_(choices) {}

  void OnStarted(const v1::Started& started) override {
    begun_ = true;
    bool too_long;
    {
      absl::MutexLock lock(&fan_->exchange_mutex_);
      if (std::exchange(fan_->any_started_, true)) {
        Merge(started, &fan_->started_);
      } else {
        fan_->started_ = started;
      }
      fan_->exchange_->OnStarted(prompt_, fan_->started_);
      too_long = fan_->exchange_->too_long();
    }
    fan_->CancelIf(too_long);
  }
  void OnPromptLogprobs(const v1::PromptLogprobs& piece) override {
    bool too_long;
    {
      absl::MutexLock lock(&fan_->exchange_mutex_);
      fan_->exchange_->OnPromptLogprobs(prompt_, piece);
      too_long = fan_->exchange_->too_long();
    }
    fan_->CancelIf(too_long);
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
    bool too_long;
    {
      absl::MutexLock lock(&fan_->exchange_mutex_);
      fan_->exchange_->OnFinished(moved);
      too_long = fan_->exchange_->too_long();
    }
    fan_->CancelIf(too_long);
  }
  void OnEnd(const grpc::Status& status) override { fan_->Ended(prompt_, status, begun_); }
  bool Restart() override { return false; }

 private:
  uint32_t Moved(uint32_t choice) const { return static_cast<uint32_t>(prompt_) * choices_ + choice; }

  const std::shared_ptr<CompletionFan> fan_;
  const size_t prompt_;
  const uint32_t choices_;
  bool begun_ = false;
};

CompletionFan::CompletionFan(Router* router, Router::Request request,
                             std::vector<std::vector<int32_t>> prompts, int at_once,
                             std::shared_ptr<CompletionExchange> exchange)
    : router_(router),
      request_(std::move(request)),
      most_at_once_(at_once),
      exchange_(std::move(exchange)),
      prompts_(std::move(prompts)),
      parts_(prompts_.size()),
      at_once_(at_once) {}

Router::Request CompletionFan::RequestOf(size_t prompt) {
  Router::Request request = request_;
  request.message.mutable_prompt()->Assign(prompts_[prompt].begin(), prompts_[prompt].end());
  return request;
}

std::optional<size_t> CompletionFan::Next() {
  if (cancelled_ || running_ >= at_once_) return std::nullopt;
  if (put_back_.empty()) return next_ < parts_.size() ? std::optional(next_++) : std::nullopt;
  const size_t prompt = put_back_.back();
  put_back_.pop_back();
  return prompt;
}

void CompletionFan::Advance() {
  const uint32_t choices = std::max<uint32_t>(1, request_.message.sampling().choices());
  for (;;) {
    std::optional<size_t> prompt;
    uint64_t attempt = 0;
    Router::Request request;
    {
      absl::MutexLock lock(&mutex_);
      prompt = Next();
      if (!prompt) return;
      ++running_;
      attempt = ++attempts_;
      parts_[*prompt] = {.attempt = attempt, .answered = answered_, .call = nullptr};
      request = RequestOf(*prompt);
    }
    auto call =
        router_->Generate(std::move(request), std::make_shared<Part>(shared_from_this(), *prompt, choices));
    bool cancelled;
    {
      absl::MutexLock lock(&mutex_);
      // It may have ended already, on another thread, and another one may run in its place.
      if (parts_[*prompt].attempt == attempt) parts_[*prompt].call = call;
      cancelled = cancelled_;
    }
    if (cancelled) call->Cancel();
  }
}

bool CompletionFan::IsPutBack(const Running& part, const grpc::Status& status, bool begun) const {
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED || status.error_details() == kHopeless) {
    return false;
  }
  // The request's own calls took the room, or may have.
  return !begun && !cancelled_ && (running_ > 0 || answered_ > part.answered);
}

void CompletionFan::Ended(size_t prompt, const grpc::Status& status, bool begun) {
  bool again = false;
  {
    absl::MutexLock lock(&mutex_);
    --running_;
    const Running part = std::exchange(parts_[prompt], {});
    again = IsPutBack(part, status, begun);
    if (again) {
      put_back_.push_back(prompt);
      at_once_ = std::max<size_t>(1, running_);
    } else if (status.ok()) {
      ++answered_;
      prompts_[prompt] = {};
      at_once_ = std::min(at_once_ + 1, most_at_once_);
    } else if (status_.ok()) {
      status_ = status;
    }
  }
  if (status.ok() || again) {
    Advance();
  } else {
    Cancel();
  }
  grpc::Status all;
  {
    absl::MutexLock lock(&mutex_);
    const bool open = next_ < parts_.size() || !put_back_.empty();
    if (running_ > 0 || (open && !cancelled_) || std::exchange(finished_, true)) return;
    all = status_;
    if (all.ok() && open) all = grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone");
  }
  absl::MutexLock lock(&exchange_mutex_);
  exchange_->OnEnd(all);
}

void CompletionFan::Cancel() {
  std::vector<std::shared_ptr<GenerateCall>> running;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (const Running& part : parts_) running.push_back(part.call);
  }
  for (const auto& call : running) {
    if (call != nullptr) call->Cancel();
  }
}

}  // namespace aludel
