#include "runtime/text/constrain/regex/code_points.h"

#include <algorithm>

namespace aludel {
namespace {

constexpr uint32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) Add(range.first, range.last);
}

void CodePointSet::Add(uint32_t first, uint32_t last) {
  last = std::min(last, kMaxCodePoint);
  if (first < kFirstSurrogate && last > kLastSurrogate) {
    Add(first, kFirstSurrogate - 1);
    return Add(kLastSurrogate + 1, last);
  }
  if (first >= kFirstSurrogate && first <= kLastSurrogate) first = kLastSurrogate + 1;
  if (last >= kFirstSurrogate && last <= kLastSurrogate) last = kFirstSurrogate - 1;
  if (first > last) return;
  // Mostly what is added comes last.
  auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                                [](const CodePointRange& range, uint32_t at) { return range.last + 1 < at; });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= last + 1; ++end) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
  }
  if (begin == end) {
    ranges_.insert(begin, {first, last});
  } else {
    *begin = {first, last};
    ranges_.erase(begin + 1, end);
  }
}

void CodePointSet::Add(const CodePointSet& other) {
  if (ranges_.empty()) {
    ranges_ = other.ranges_;
    return;
  }
  for (const CodePointRange& range : other.ranges_) Add(range.first, range.last);
}

CodePointSet CodePointSet::Negated() const {
  CodePointSet rest;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) rest.Add(next, range.first - 1);
    next = range.last + 1;
  }
  rest.Add(next, kMaxCodePoint);
  return rest;
}

CodePointSet CodePointSet::operator&(const CodePointSet& other) const {
  CodePointSet both;
  for (auto a = ranges_.begin(), b = other.ranges_.begin(); a != ranges_.end() && b != other.ranges_.end();) {
    const uint32_t first = std::max(a->first, b->first), last = std::min(a->last, b->last);
    if (first <= last) both.Add(first, last);
    a->last < b->last ? ++a : ++b;
  }
  return both;
}

bool CodePointSet::Has(uint32_t code_point) const {
  const auto range = std::lower_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](const CodePointRange& one, uint32_t at) { return one.last < at; });
  return range != ranges_.end() && range->first <= code_point;
}

const CodePointSet& Digits() {
  static const auto* const set = new CodePointSet{{'0', '9'}};
  return *set;
}

const CodePointSet& WordCharacters() {
  static const auto* const set = new CodePointSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return *set;
}

const CodePointSet& WhiteSpace() {
  static const auto* const set = new CodePointSet{
      {0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  return *set;
}

const CodePointSet& AllButLineEnds() {
  static const auto* const set =
      new CodePointSet(CodePointSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.Negated());
  return *set;
}

}  // namespace aludel
