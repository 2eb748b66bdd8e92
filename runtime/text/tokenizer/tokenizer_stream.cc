#include <limits>

#include "absl/strings/match.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {
namespace {

constexpr absl::string_view kReplacementCharacter = "\xef\xbf\xbd";
// A character has at most four bytes and a token at least one: of more ids than that, the first are certain.
constexpr size_t kMaxHeld = 4;

size_t CountReplacements(absl::string_view text) {
  size_t count = 0;
  for (size_t at = text.find(kReplacementCharacter); at != absl::string_view::npos;
       at = text.find(kReplacementCharacter, at + kReplacementCharacter.size())) {
    ++count;
  }
  return count;
}

}  // namespace

// What was emitted last is decoded again with what follows, because a decoder may treat the first token of a
// text in its own way (Llama drops its leading space); only the text of the new ids is returned.
std::string StreamDecoder::TextUntil(size_t end) const {
  const absl::Span<const int32_t> ids = ids_;
  const std::string context = tokenizer_->Decode(ids.subspan(0, read_), /*skip_special_tokens=*/true);
  const std::string text = tokenizer_->Decode(ids.subspan(0, end), true);
  if (absl::StartsWith(text, context)) return text.substr(context.size());
  // New bytes turned the context's bytes into something else.
  return tokenizer_->Decode(ids.subspan(read_, end - read_), true);
}

// How many of ids_ can be emitted although their text ends in U+FFFD: all but the last ones that may still
// begin a character. The cut that leaves the fewest U+FFFD is in front of them: a cut inside an unfinished
// character leaves one more, and behind an unfinished character a byte-fallback decoder breaks what came
// before it too. Of equal cuts the last is the one that is not inside broken bytes.
size_t StreamDecoder::CertainIds() const {
  const absl::Span<const int32_t> ids = ids_;
  size_t certain = ids_.size();
  size_t fewest = std::numeric_limits<size_t>::max();
  for (size_t back = 0; back < kMaxHeld; ++back) {
    const std::string before = tokenizer_->Decode(ids.subspan(0, ids_.size() - back), true);
    const size_t broken = CountReplacements(before);
    if (broken < fewest) {
      fewest = broken;
      certain = ids_.size() - back;
    }
  }
  return certain;
}

std::string StreamDecoder::Push(int32_t id) {
  if (id < 0 || id >= tokenizer_->vocab_size() || tokenizer_->IsSpecial(id)) return "";
  ids_.push_back(id);
  const std::string text = tokenizer_->Decode(ids_, /*skip_special_tokens=*/true);
  size_t certain = ids_.size();
  if (absl::EndsWith(text, kReplacementCharacter)) {
    if (ids_.size() - read_ <= kMaxHeld) return "";
    certain = CertainIds();
  }
  std::string piece = TextUntil(certain);
  if (piece.empty() && certain - read_ <= kMaxHeld) return "";
  ids_.erase(ids_.begin(), ids_.begin() + read_);
  read_ = certain - read_;
  return piece;
}

std::string StreamDecoder::Flush() {
  std::string piece = TextUntil(ids_.size());
  ids_.clear();
  read_ = 0;
  return piece;
}

}  // namespace aludel
