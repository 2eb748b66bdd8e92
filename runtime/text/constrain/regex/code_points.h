#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

inline constexpr uint32_t kMaxCodePoint = 0x10ffff;

struct CodePointRange {
  uint32_t first = 0;
  uint32_t last = 0;
  auto operator<=>(const CodePointRange&) const = default;
};

// Characters as ascending ranges that do not touch; surrogates are none. A value; not thread-safe while it is changed.
class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);
  static CodePointSet All() { return {{0, kMaxCodePoint}}; }

  void Add(uint32_t first, uint32_t last);
  void Add(const CodePointSet& other);
  CodePointSet Negated() const;
  CodePointSet operator&(const CodePointSet& other) const;

  absl::Span<const CodePointRange> ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool Has(uint32_t code_point) const;
  bool operator==(const CodePointSet&) const = default;
  auto operator<=>(const CodePointSet&) const = default;

 private:
  std::vector<CodePointRange> ranges_;
};

// What regular expressions of ECMA-262 call \d, \w, \s and the dot.
const CodePointSet& Digits();
const CodePointSet& WordCharacters();
const CodePointSet& WhiteSpace();
const CodePointSet& AllButLineEnds();

}  // namespace aludel
