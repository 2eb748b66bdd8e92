#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Bytes [begin, end) of a text of less than 4 GiB: a text may be cut into as many pieces as it has bytes.
struct TextRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  size_t size() const { return end - begin; }
};
inline TextRange Range(size_t begin, size_t end) {
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

// A regular expression of a tokenizer.json, compiled by PCRE2 (UTF, UCP, JIT). Such expressions are written
// for Oniguruma in Ruby syntax, so the pattern is translated first: `\s` and `\w` to the Unicode properties
// that Oniguruma gives them, script names to Script (PCRE2 takes Script_Extensions), `\v` and `\u` to code
// points; constructs that mean something else in the two engines (possessive intervals, class
// intersections, `\h`, ...) are errors. What remains different is the Unicode version: PCRE2 10.42 knows
// 14. Immutable and thread-safe.
class Regex {
 public:
  static absl::StatusOr<Regex> Compile(absl::string_view pattern, absl::string_view origin);

  // Tells of all occurrences in `text` (well-formed UTF-8), from left to right; an empty match is skipped
  // where it touches the match before it. ResourceExhausted where matching exceeds its bound on steps
  // or stack. `found` may not match on this thread.
  absl::Status ForEach(absl::string_view text, absl::FunctionRef<void(TextRange)> found) const;

  const std::string& pattern() const { return pattern_; }

 private:
  struct CodeDeleter {
    void operator()(void* code) const;
  };

  std::string pattern_;
  std::unique_ptr<void, CodeDeleter> code_;
};

// The translation alone, for tests.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace aludel
