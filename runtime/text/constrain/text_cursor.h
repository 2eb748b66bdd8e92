#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// A place in a pattern or a grammar that is being read. Copies look ahead. The text must outlive it; not thread-safe.
class TextCursor {
 public:
  explicit TextCursor(absl::string_view text) : text_(text) {}

  // InvalidArgument, to be read behind "the pattern" or "the grammar": "has WHAT at byte N".
  static absl::Status Fault(size_t byte, absl::string_view what);
  // A fault where the text is no UTF-8.
  absl::Status CheckUtf8() const;

  size_t at() const { return at_; }
  bool Done() const { return at_ == text_.size(); }
  absl::string_view rest() const { return text_.substr(at_); }
  bool Next(absl::string_view text) const { return text_.substr(at_, text.size()) == text; }
  // A byte for which `belongs` is true comes next.
  template <typename Belongs>
  bool NextIs(const Belongs& belongs) const {
    return !Done() && belongs(static_cast<unsigned char>(text_[at_]));
  }

  void Skip(size_t bytes) { at_ += bytes; }  // as many as are left at most
  bool Take(absl::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  template <typename Belongs>
  absl::string_view TakeWhile(const Belongs& belongs) {
    const size_t begin = at_;
    while (NextIs(belongs)) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // Not at the end of the text, which is UTF-8.
  uint32_t TakeCodePoint();
  // So many hexadecimal digits, 8 at most; nothing, and none taken, where there are fewer.
  std::optional<uint32_t> TakeHex(size_t digits);
  // Decimal digits, `most` where they say more; nothing where none comes.
  std::optional<int32_t> TakeNumber(int32_t most);

 private:
  absl::string_view text_;
  size_t at_ = 0;
};

}  // namespace aludel
