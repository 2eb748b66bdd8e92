#include "server/gateway/openai/answer/logprobs_json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/text/tokenizer/utf8.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

bool Continues(char byte) { return (byte & 0xc0) == 0x80; }

}  // namespace

ordered_json LogprobsJson::Make(const v1::Token& token) {
  if (token.logprobs().empty()) return nullptr;
  return chat_ ? MakeChat(token) : MakePlain(token);
}

ordered_json LogprobsJson::MakeChat(const v1::Token& token) const {
  ordered_json entry = ChatEntry(token.logprobs(0));
  ordered_json& top = entry["top_logprobs"] = ordered_json::array();
  for (int i = 1; i < token.logprobs_size(); ++i) top.push_back(ChatEntry(token.logprobs(i)));
  return {{"content", ordered_json::array({std::move(entry)})}, {"refusal", nullptr}};
}

ordered_json LogprobsJson::MakePlain(const v1::Token& token) {
  // A token that begins inside a character stands where that character does; one without text adds none.
  const int32_t id = token.logprobs(0).token();
  const std::string bytes = tokenizer_->TokenBytes(id);
  const bool inside = !bytes.empty() && Continues(bytes[0]) && characters_ > 0;
  const int64_t offset = inside ? characters_ - 1 : characters_;
  characters_ += std::count_if(bytes.begin(), bytes.end(), [](char byte) { return !Continues(byte); });
  return PlainEntry(id, std::vector<v1::TokenLogprob>(token.logprobs().begin(), token.logprobs().end()),
                    offset);
}

ordered_json LogprobsJson::PlainEntry(int32_t token, absl::Span<const v1::TokenLogprob> entries,
                                      int64_t offset) const {
  const std::string spelling = PlainSpelling(token);
  ordered_json own = nullptr;
  ordered_json top = nullptr;
  if (!entries.empty()) {
    own = Finite(entries[0].logprob());
    top = ordered_json::object();
    // The token that was drawn is among its alternatives, be it likely or not.
    for (const v1::TokenLogprob& entry : entries.subspan(1)) {
      top.emplace(PlainSpelling(entry.token()), Finite(entry.logprob()));
    }
    top.emplace(spelling, ordered_json(own));
  }
  return {{"tokens", ordered_json::array({spelling})},
          {"token_logprobs", ordered_json::array({own})},
          {"top_logprobs", ordered_json::array({std::move(top)})},
          {"text_offset", ordered_json::array({offset})}};
}

std::string LogprobsJson::Bytes(int32_t token) const {
  if (tokenizer_->IsSpecial(token)) return tokenizer_->Decode({token}, /*skip_special_tokens=*/false);
  return tokenizer_->TokenBytes(token);
}

std::string LogprobsJson::PlainSpelling(int32_t token) const {
  const std::string bytes = Bytes(token);
  const std::string text = Spelling(bytes);
  return text == bytes ? text : absl::StrCat("bytes:", text);
}

std::string LogprobsJson::Spelling(const std::string& bytes) {
  if (FirstInvalidUtf8(bytes) == bytes.size()) return bytes;
  std::string text;
  for (const char byte : bytes) absl::StrAppendFormat(&text, "\\x%02x", static_cast<uint8_t>(byte));
  return text;
}

ordered_json LogprobsJson::ChatEntry(const v1::TokenLogprob& entry) const {
  const std::string text = Bytes(entry.token());
  ordered_json bytes = ordered_json::array();
  for (const char byte : text) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", Spelling(text)}, {"logprob", Finite(entry.logprob())}, {"bytes", std::move(bytes)}};
}

void LogprobsText::Append(const ordered_json& one) {
  if (one.is_null()) return;
  const bool first = members_.empty();
  auto member = members_.begin();
  for (const auto& [name, value] : one.items()) {
    std::string text = Dump(value);
    if (value.is_array()) text.pop_back();
    if (first) {
      members_.push_back({name, std::move(text), value.is_array()});
    } else if (auto& [known, all, list] = *member++; list) {
      text[0] = ',';
      all += text;
    }
  }
}

void LogprobsText::AppendTo(std::string* body) const {
  if (members_.empty()) {
    *body += "null";
    return;
  }
  for (const Member& member : members_) {
    absl::StrAppend(body, &member == &members_[0] ? "{" : ",", "\"", member.name, "\":", member.text,
                    member.list ? "]" : "");
  }
  *body += "}";
}

size_t LogprobsText::size() const {
  size_t bytes = sizeof("null");
  for (const Member& member : members_) bytes += member.name.size() + member.text.size() + sizeof(",\"\":]");
  return bytes;
}

}  // namespace aludel
