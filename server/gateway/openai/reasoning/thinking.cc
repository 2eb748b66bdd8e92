#include "server/gateway/openai/reasoning/thinking.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using Mode = ReasoningSplitter::Mode;

constexpr std::array<absl::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                       "high", "xhigh",   "max"};

ApiError Unable(absl::string_view param, absl::string_view model, absl::string_view why) {
  return UnsupportedParameter(param,
                              absl::StrCat("'", param, "' is not supported for model '", model, "': ", why));
}

}  // namespace

Thinking DetectThinking(absl::string_view chat_template) {
  return {.spans = absl::StrContains(chat_template, kThinkEnd),
          .can_switch = absl::StrContains(chat_template, "enable_thinking"),
          .has_effort = absl::StrContains(chat_template, "reasoning_effort")};
}

void ParseEffort(JsonFields& fields, absl::string_view member, const std::string& param, ThinkingWish* wish) {
  fields.Describe(member, [] {
    ordered_json names = ordered_json::array();
    for (const absl::string_view name : kEfforts) names.push_back(std::string(name));
    return ordered_json{{"enum", std::move(names)}};
  });
  const auto effort = fields.String(member);
  if (!effort) return;
  if (!absl::c_linear_search(kEfforts, *effort)) {
    return fields.Fail(member, absl::StrCat("must be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or "
                                            "'max', found '",
                                            *effort, "'"));
  }
  wish->effort = *effort;
  wish->param = param;
}

void ParseThinkingBudget(JsonFields& fields, absl::string_view member, const std::string& param,
                         int64_t least, ThinkingWish* wish) {
  const auto budget = fields.Integer(member, least, std::numeric_limits<int32_t>::max());
  if (!budget) return;
  wish->budget = static_cast<uint32_t>(*budget);
  wish->budget_param = param;
}

std::optional<ApiError> SetEffort(const Thinking& thinking, absl::string_view model, const ThinkingWish& wish,
                                  ordered_json* context) {
  if (wish.effort.empty()) return std::nullopt;
  const bool none = wish.effort == "none";
  if (thinking.has_effort && !(none && thinking.can_switch)) {
    if (!context->contains("reasoning_effort")) (*context)["reasoning_effort"] = wish.effort;
    return std::nullopt;
  }
  if (thinking.can_switch) {
    if (!context->contains("enable_thinking")) (*context)["enable_thinking"] = !none;
    return std::nullopt;
  }
  if (none == !thinking.spans || wish.lenient) return std::nullopt;  // as it is in any case
  return Unable(
      wish.param, model,
      none ? "its chat template has no switch to leave thinking out" : "its chat template knows no thinking");
}

Mode ThoughtsBehind(const Thinking& thinking, absl::string_view rendered, const ordered_json* last) {
  if (!thinking.spans) return Mode::kOff;
  if (last != nullptr) {
    // It goes on in its thoughts, or behind them.
    const std::string& said = (*last)["content"].get_ref<const std::string&>();
    const size_t open = said.rfind(kThinkBegin.data(), std::string::npos, kThinkBegin.size());
    const size_t close = said.rfind(kThinkEnd.data(), std::string::npos, kThinkEnd.size());
    return open != std::string::npos && (close == std::string::npos || close < open) ? Mode::kInside
                                                                                     : Mode::kOff;
  }
  const absl::string_view end = absl::StripTrailingAsciiWhitespace(rendered);
  if (absl::EndsWith(end, kThinkBegin)) return Mode::kInside;
  // Templates that are told not to think write empty thoughts.
  return absl::EndsWith(end, kThinkEnd) ? Mode::kOff : Mode::kMayBegin;
}

std::optional<ApiError> LetThink(Mode mode, const Thinking& thinking, absl::string_view model,
                                 const Tokenizer& tokenizer, const ThinkingWish& wish,
                                 v1::GenerateRequest* generate) {
  if (wish.budget && !thinking.spans) {
    return Unable(wish.budget_param, model, "its chat template knows no thinking");
  }
  if (mode == Mode::kOff) return std::nullopt;
  if (generate->has_constraint()) {
    if (mode == Mode::kMayBegin) generate->mutable_constraint()->set_think_begin(std::string(kThinkBegin));
    generate->mutable_constraint()->set_think_end(std::string(kThinkEnd));
  }
  if (!wish.budget) return std::nullopt;
  const int32_t begin = tokenizer.TokenToId(kThinkBegin);
  const int32_t end = tokenizer.TokenToId(kThinkEnd);
  if (end < 0 || (begin < 0 && mode == Mode::kMayBegin) ||
      (generate->has_constraint() && tokenizer.IsSpecial(end))) {
    return Unable(wish.budget_param, model,
                  "thoughts do not begin and end with one token each that a format allows");
  }
  v1::ThinkingBudget* const budget = generate->mutable_sampling()->mutable_thinking();
  budget->set_tokens(*wish.budget);
  budget->set_end_token(end);
  if (mode == Mode::kMayBegin) budget->set_begin_token(begin);
  return std::nullopt;
}

}  // namespace aludel
