#include "server/gateway/openai/tools/tool_call_parser.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kOpen = "<tool_call>";
constexpr absl::string_view kClose = "</tool_call>";
constexpr absl::string_view kMistralOpen = "[TOOL_CALLS]";

// Mistral's template wants ids of exactly nine letters and digits; others take any.
std::string MakeCallId(ToolDialect dialect) {
  static constexpr absl::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local absl::BitGen random;
  const bool mistral = dialect == ToolDialect::kMistral;
  std::string id = mistral ? "" : "call_";
  for (int i = mistral ? 9 : 24; i > 0; --i)
    id += kLetters[absl::Uniform<size_t>(random, 0, kLetters.size())];
  return id;
}

// How much of the end of `text` may be the beginning of `marker`.
size_t HeldBack(absl::string_view text, absl::string_view marker) {
  for (size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size) {
    if (absl::EndsWith(text, marker.substr(0, size))) return size;
  }
  return 0;
}

// The bytes of the JSON object or array that `text` begins with; 0 where it does not end.
size_t ValueSize(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

std::optional<ToolCall> ReadCall(const ordered_json& value, const std::vector<std::string>& names,
                                 ToolDialect dialect) {
  if (!value.is_object()) return std::nullopt;
  const auto name = value.find("name");
  if (name == value.end() || !name->is_string() || !absl::c_linear_search(names, name->get<std::string>())) {
    return std::nullopt;
  }
  auto arguments = value.find("arguments");
  if (arguments == value.end()) arguments = value.find("parameters");
  ordered_json object = arguments == value.end() ? ordered_json::object() : *arguments;
  if (object.is_string()) {
    const auto inner = ParseOrdered(object.get_ref<const std::string&>());
    if (inner.ok()) object = *inner;
  }
  if (!object.is_object()) return std::nullopt;
  return ToolCall{MakeCallId(dialect), *name, Dump(object)};
}

bool Consume(absl::string_view* text, absl::string_view token) {
  *text = absl::StripLeadingAsciiWhitespace(*text);
  return absl::ConsumePrefix(text, token);
}

// The call that `text` begins with, which ended too early; nothing where its name is not there in full.
std::optional<ToolCall> ReadCutCall(absl::string_view text, const std::vector<std::string>& names,
                                    ToolDialect dialect) {
  Consume(&text, "[");
  if (!Consume(&text, "{") || !Consume(&text, "\"name\"") || !Consume(&text, ":")) return std::nullopt;
  const auto name = absl::c_find_if(
      names, [&](const std::string& one) { return Consume(&text, absl::StrCat("\"", one, "\"")); });
  if (name == names.end()) return std::nullopt;
  ToolCall call{MakeCallId(dialect), *name, ""};
  if (Consume(&text, ",") && (Consume(&text, "\"arguments\"") || Consume(&text, "\"parameters\"")) &&
      Consume(&text, ":")) {
    text = absl::StripLeadingAsciiWhitespace(text);
    const size_t size = ValueSize(text);
    call.arguments = std::string(text.substr(0, size > 0 ? size : text.size()));
  }
  return call;
}

}  // namespace

ToolCallParser::Output ToolCallParser::Push(absl::string_view text) {
  Output output;
  held_.append(text.data(), text.size());
  switch (options_.dialect) {
    case ToolDialect::kNone:
      output.text = std::exchange(held_, "");
      break;
    case ToolDialect::kHermes:
      PushHermes(&output);
      break;
    case ToolDialect::kLlama:
      PushWhole('{', &output);
      break;
    case ToolDialect::kMistral: {
      if (options_.bare && !options_.required) {
        PushWhole('[', &output);
        break;
      }
      if (inside_ || options_.required) break;
      const size_t at = held_.find(kMistralOpen.data(), 0, kMistralOpen.size());
      inside_ = at != std::string::npos;
      const size_t shown = inside_ ? at : held_.size() - HeldBack(held_, kMistralOpen);
      EmitText(absl::string_view(held_).substr(0, shown), &output);
      held_.erase(0, inside_ ? at + kMistralOpen.size() : shown);
      break;
    }
  }
  return output;
}

void ToolCallParser::PushWhole(char first, Output* output) {
  const absl::string_view begin =
      absl::StripLeadingAsciiWhitespace(absl::string_view(held_).substr(searched_));
  searched_ = held_.size() - begin.size();
  plain_ = plain_ || (!begin.empty() && begin[0] != first);
  if (!plain_) return;
  output->text = std::exchange(held_, "");
  searched_ = 0;
}

void ToolCallParser::PushHermes(Output* output) {
  const absl::string_view held = held_;
  size_t begin = 0;  // of what has not been taken
  while (true) {
    const absl::string_view marker = inside_ ? kClose : kOpen;
    const size_t at = held.find(marker, std::max(begin, searched_));
    if (at == absl::string_view::npos) break;
    const absl::string_view before = held.substr(begin, at - begin);
    begin = at + marker.size();
    if (!inside_) {
      EmitText(before, output);
    } else if (!TakeCalls(before, output)) {
      EmitText(absl::StrCat(kOpen, before, kClose), output);
    }
    inside_ = !inside_;
  }
  if (inside_) {
    // A marker may have begun in the last bytes.
    searched_ = std::max(begin, held.size() - std::min(held.size(), kClose.size() - 1));
  } else {
    const size_t shown = held.size() - HeldBack(held.substr(begin), kOpen);
    EmitText(held.substr(begin, shown - begin), output);
    begin = searched_ = shown;
  }
  held_.erase(0, begin);
  searched_ -= begin;
}

// White space behind a call is the model's typography, not an answer.
void ToolCallParser::EmitText(absl::string_view text, Output* output) {
  if (behind_call_) text = absl::StripLeadingAsciiWhitespace(text);
  if (!text.empty()) behind_call_ = false;
  output->text.append(text.data(), text.size());
}

bool ToolCallParser::TakeCalls(absl::string_view text, Output* output) {
  std::vector<ToolCall> calls;
  bool any = false;
  for (text = absl::StripAsciiWhitespace(text); !text.empty();
       text = absl::StripLeadingAsciiWhitespace(text)) {
    if (any && (text[0] == ';' || text[0] == ',')) {
      text.remove_prefix(1);
      continue;
    }
    const size_t size = text[0] == '{' || text[0] == '[' ? ValueSize(text) : 0;
    if (size == 0) return false;
    const auto value = ParseOrdered(text.substr(0, size));
    if (!value.ok()) return false;
    const ordered_json list = value->is_array() ? *value : ordered_json::array({*value});
    for (const ordered_json& item : list) {
      std::optional<ToolCall> call = ReadCall(item, options_.names, options_.dialect);
      if (!call) return false;
      any = true;
      if (calls_ + calls.size() < options_.max_calls) calls.push_back(*std::move(call));
    }
    text.remove_prefix(size);
  }
  if (!any) return false;
  for (ToolCall& call : calls) {
    ++calls_;
    behind_call_ = true;
    output->calls.push_back(std::move(call));
  }
  return true;
}

ToolCallParser::Output ToolCallParser::Finish() {
  Output output;
  const std::string held = std::exchange(held_, "");
  const bool maybe_call =
      inside_ || options_.required || options_.bare || options_.dialect == ToolDialect::kLlama;
  if (maybe_call && TakeCalls(held, &output)) return output;
  if (options_.required) {
    if (auto call = ReadCutCall(held, options_.names, options_.dialect)) {
      output.calls.push_back(*std::move(call));
    }
    return output;
  }
  // The marker is text, too, where no call follows it.
  const absl::string_view marker = options_.dialect == ToolDialect::kHermes ? kOpen : kMistralOpen;
  EmitText(absl::StrCat(inside_ ? marker : "", held), &output);
  return output;
}

}  // namespace aludel
