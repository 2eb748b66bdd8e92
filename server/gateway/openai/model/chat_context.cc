#include "server/gateway/openai/model/chat_context.h"

#include <algorithm>
#include <bitset>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Supplementary Private Use Area-B, U+100000 to U+10FFFD: four bytes each, of which the first is 0xf4.
constexpr size_t kJoints = 0xfffe;
using Joints = std::bitset<kJoints>;

std::string Joint(size_t index) {
  return {static_cast<char>(0xf4), static_cast<char>(0x80 | index >> 12),
          static_cast<char>(0x80 | (index >> 6 & 0x3f)), static_cast<char>(0x80 | (index & 0x3f))};
}

void MarkUsed(absl::string_view text, Joints* used) {
  const auto low = [&](size_t at) { return static_cast<uint8_t>(text[at]) & 0x3fu; };
  for (size_t at = text.find('\xf4'); at != absl::string_view::npos && at + 3 < text.size();
       at = text.find('\xf4', at + 1)) {
    const size_t index = low(at + 1) << 12 | low(at + 2) << 6 | low(at + 3);
    if (index < kJoints) used->set(index);
  }
}

// All strings, names of members included.
template <typename Visit>
void ForEachString(const ordered_json& value, const Visit& visit) {
  if (value.is_string()) visit(value.get_ref<const std::string&>());
  if (!value.is_structured()) return;
  for (const auto& [name, member] : value.items()) {
    if (value.is_object()) visit(name);
    ForEachString(member, visit);
  }
}

ordered_json Broken(const Tokenizer& tokenizer, const ordered_json& value, const std::string& joint) {
  if (value.is_string()) return tokenizer.BreakSpecialTokens(value.get_ref<const std::string&>(), joint);
  if (!value.is_structured()) return value;
  ordered_json broken = value.is_object() ? ordered_json::object() : ordered_json::array();
  for (const auto& [name, member] : value.items()) {
    if (value.is_object()) {
      broken[tokenizer.BreakSpecialTokens(name, joint)] = Broken(tokenizer, member, joint);
    } else {
      broken.push_back(Broken(tokenizer, member, joint));
    }
  }
  return broken;
}

// The special tokens of a conversation in which everything said is `content`.
absl::StatusOr<std::vector<int32_t>> SpecialTokens(const Tokenizer& tokenizer,
                                                   const ChatTemplate& chat_template,
                                                   const std::string& content, int turns) {
  ordered_json context = {{"messages", ordered_json::array()}, {"add_generation_prompt", true}};
  for (int i = 0; i < turns; ++i) {
    context["messages"].push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", content}});
  }
  std::string joint;
  if (auto error = BreakSpecialTokens(tokenizer, &context["messages"], &joint)) {
    return absl::FailedPreconditionError(error->message);
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, chat_template.Render(context));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(text, false, joint));
  std::erase_if(ids, [&](int32_t id) { return !tokenizer.IsSpecial(id); });
  return ids;
}

}  // namespace

std::optional<ApiError> BreakSpecialTokens(const Tokenizer& tokenizer, ordered_json* context,
                                           std::string* joint) {
  joint->clear();
  Joints used;
  bool breaks = false;
  ForEachString(*context, [&](const std::string& text) {
    MarkUsed(text, &used);
    breaks = breaks || tokenizer.BreakSpecialTokens(text, Joint(0)).size() != text.size();
  });
  if (!breaks) return std::nullopt;
  size_t free = 0;
  while (free < kJoints && used[free]) ++free;
  if (free == kJoints) {
    return InvalidParameter("messages",
                            "the messages spell a special token and hold every character of U+100000 to "
                            "U+10FFFD; at least one must be left");
  }
  *joint = Joint(free);
  *context = Broken(tokenizer, *context, *joint);
  return std::nullopt;
}

absl::Status CheckBreaking(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  ALUDEL_RETURN_IF_ERROR(tokenizer.CanBreakSpecialTokens());
  const auto plain = SpecialTokens(tokenizer, chat_template, "word", 3);
  if (!plain.ok())
    return absl::OkStatus();  // of conversations that it does not render there is nothing to forge
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    const std::string spelling = tokenizer.Decode({id}, /*skip_special_tokens=*/false);
    const auto found = SpecialTokens(tokenizer, chat_template, absl::StrCat("word", spelling, "word"), 3);
    if (found.ok() && *found == *plain) continue;
    return absl::FailedPreconditionError(absl::StrCat("the chat template does not tell \"", spelling,
                                                      "\" in a message from what it writes itself"));
  }
  return absl::OkStatus();
}

bool MarksTurnsBySpecialTokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  const auto one = SpecialTokens(tokenizer, chat_template, "word", 1);
  const auto three = SpecialTokens(tokenizer, chat_template, "word", 3);
  return !one.ok() || !three.ok() || three->size() > one->size();
}

}  // namespace aludel
