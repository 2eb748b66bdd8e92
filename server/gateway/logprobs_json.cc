#include "server/gateway/logprobs_json.h"

namespace aludel {

using nlohmann::ordered_json;

ordered_json LogprobsJson::Make(const v1::Token& token) {
  if (token.logprobs().empty()) return nullptr;
  const v1::TokenLogprob& own = token.logprobs(0);
  ordered_json top = chat_ ? ordered_json::array() : ordered_json::object();
  for (int i = 1; i < token.logprobs_size(); ++i) {
    const v1::TokenLogprob& entry = token.logprobs(i);
    if (chat_) {
      top.push_back(ChatEntry(entry));
    } else {
      top[Spelling(entry.token())] = entry.logprob();
    }
  }
  if (chat_) {
    ordered_json entry = ChatEntry(own);
    entry["top_logprobs"] = std::move(top);
    return {{"content", ordered_json::array({std::move(entry)})}, {"refusal", nullptr}};
  }
  const std::string text = Spelling(own.token());
  ordered_json lists = {{"tokens", ordered_json::array({text})},
                        {"token_logprobs", ordered_json::array({own.logprob()})},
                        {"top_logprobs", ordered_json::array({std::move(top)})},
                        {"text_offset", ordered_json::array({text_offset_})}};
  text_offset_ += static_cast<int64_t>(text.size());
  return lists;
}

void LogprobsJson::Append(const ordered_json& one, ordered_json* all) {
  if (one.is_null()) return;
  if (all->is_null()) {
    *all = one;
    return;
  }
  for (const auto& [name, list] : one.items()) {
    if (list.is_array()) (*all)[name].insert((*all)[name].end(), list.begin(), list.end());
  }
}

std::string LogprobsJson::Spelling(int32_t token) const {
  if (tokenizer_->IsSpecial(token)) return tokenizer_->Decode({token}, /*skip_special_tokens=*/false);
  return tokenizer_->TokenBytes(token);
}

ordered_json LogprobsJson::ChatEntry(const v1::TokenLogprob& entry) const {
  const std::string text = Spelling(entry.token());
  ordered_json bytes = ordered_json::array();
  for (const char byte : text) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", text}, {"logprob", entry.logprob()}, {"bytes", std::move(bytes)}};
}

}  // namespace aludel
