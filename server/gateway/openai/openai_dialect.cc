#include "server/gateway/openai/openai_dialect.h"

#include <utility>

namespace aludel {
namespace {

class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(CompletionIdentity identity, int choices)
      : identity_(std::move(identity)), choices_(choices), introduced_(identity_.prompt_ids.size()) {}

  std::string Start(const v1::Started&) override {
    std::string events;
    for (int choice = 0; choice < choices_ && identity_.chat; ++choice) {
      events += SseEvent(RoleChunk(identity_, choice));
    }
    return events;
  }

  std::string StartPrompt(size_t prompt) override {
    if (!identity_.return_token_ids || identity_.chat || introduced_[prompt]) return "";
    introduced_[prompt] = true;
    return SseEvent(PromptChunk(identity_, prompt));
  }

  std::string Delta(int choice, const ChoiceDelta& delta) override {
    return SseEvent(DeltaChunk(identity_, choice, delta));
  }

  std::string End(int choice, const ChoiceEnd& end) override {
    return SseEvent(LastChunk(identity_, choice, end, nullptr));
  }

  std::string Complete(int last_choice, const ChoiceEnd& end, const TokenUsage& usage,
                       const CompletionReport& report) override {
    std::string events = SseEvent(LastChunk(identity_, last_choice, end, &report));
    if (identity_.include_usage) events += SseEvent(UsageChunk(identity_, usage, report));
    events.append(kSseDone.data(), kSseDone.size());
    return events;
  }

  // Without [DONE].
  std::string Fail(const ApiError& error) override { return SseEvent(error.ToJson()); }

  std::string Whole(const std::vector<WholeChoice>& choices, const TokenUsage& usage,
                    const CompletionReport& report) override {
    return WholeBody(identity_, choices, usage, report);
  }

  size_t kept_bytes() const override { return 0; }

 private:
  const CompletionIdentity identity_;
  const int choices_;             // of each prompt
  std::vector<bool> introduced_;  // of each prompt, whether its token ids have left
};

}  // namespace

std::optional<ApiError> OpenAiDialect::Read(absl::string_view body, CompletionRequest* request) {
  return chat_ ? ParseChatRequest(body, request) : ParseCompletionRequest(body, request);
}

std::unique_ptr<AnswerWriter> OpenAiDialect::Writer(const CompletionRequest& request,
                                                    CompletionIdentity identity) {
  return std::make_unique<OpenAiWriter>(std::move(identity), static_cast<int>(request.sampling.choices()));
}

}  // namespace aludel
