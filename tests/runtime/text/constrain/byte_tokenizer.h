#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// One token per byte, 256 the end, and then whatever strings a test adds.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int kEnd = 256;
  explicit ByteTokenizer(std::vector<std::string> more = {}) : more_(std::move(more)) {}

  using Tokenizer::Encode;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool,
                                              absl::string_view) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id);
    return text;
  }
  std::string TokenBytes(int32_t id) const override {
    if (id < 0 || id == kEnd || id >= vocab_size()) return "";
    return id < kEnd ? std::string(1, static_cast<char>(id)) : more_[id - kEnd - 1];
  }
  std::string BreakSpecialTokens(absl::string_view text, absl::string_view) const override {
    return std::string(text);
  }
  absl::Status CanBreakSpecialTokens() const override { return absl::OkStatus(); }
  int vocab_size() const override { return kEnd + 1 + static_cast<int>(more_.size()); }
  bool IsSpecial(int32_t id) const override { return id == kEnd; }
  int32_t TokenToId(absl::string_view) const override { return -1; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const std::string& vocabulary_fingerprint() const override { return fingerprint_; }

 private:
  const std::vector<std::string> more_;
  const std::string fingerprint_ = "bytes";
};

}  // namespace aludel
