#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/gateway/openai/model/served_models.h"

namespace aludel {

// One token per byte; 256 stands in front of plain text.
class ByteTokenizer : public Tokenizer {
 public:
  using Tokenizer::Encode;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special,
                                              absl::string_view) const override {
    std::vector<int32_t> ids;
    if (add_special) ids.push_back(256);
    for (char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids, bool) const override {
    std::string text;
    for (int32_t id : ids) text += id == 256 ? "<s>" : std::string(1, static_cast<char>(id));
    return text;
  }
  std::string TokenBytes(int32_t id) const override {
    return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : "";
  }
  std::string BreakSpecialTokens(absl::string_view text, absl::string_view) const override {
    return std::string(text);
  }
  absl::Status CanBreakSpecialTokens() const override { return absl::OkStatus(); }
  int vocab_size() const override { return 257; }
  bool IsSpecial(int32_t id) const override { return id == 256; }
  int32_t TokenToId(absl::string_view) const override { return -1; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const std::string& vocabulary_fingerprint() const override { return fingerprint_; }

 private:
  const std::string fingerprint_ = "bytes";
};

// "<content>|" for each message, and a refusal of system messages, as some published templates have it.
class BarTemplate : public ChatTemplate {
 public:
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const override {
    std::string text;
    if (context.contains("tools")) text += context["tools"][0]["function"]["name"].get<std::string>() + "!";
    for (const auto& message : context["messages"]) {
      if (message["role"] == "system") return absl::InvalidArgumentError("System role not supported");
      text += message["content"].get<std::string>() + "|";
    }
    return text;
  }
  const std::string& tool_source() const override { return source_; }

 private:
  const std::string source_ = "{{ messages }}";
};

// Two served models without files: "chat", and "org/plain", which has no chat template.
inline ServedModels PlainModels() {
  std::vector<std::unique_ptr<ServedModel>> list;
  for (const char* name : {"chat", "org/plain"}) {
    list.push_back(std::make_unique<ServedModel>());
    list.back()->name = name;
    list.back()->tokenizer = std::make_unique<ByteTokenizer>();
    list.back()->longest_token_bytes = LongestTokenBytes(*list.back()->tokenizer);
  }
  list[0]->chat_template = std::make_unique<BarTemplate>();
  list[0]->tool_dialect = ToolDialect::kHermes;
  return ServedModels(std::move(list));
}

}  // namespace aludel
