#include "runtime/text/constrain/regex/alphabet.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr uint32_t kFirstSurrogate = 0xd800, kBehindSurrogates = 0xe000;
constexpr int64_t kCutsPerStep = 2;

}  // namespace

void Alphabet::CutAt(std::vector<uint32_t> points) {
  points.insert(points.end(), {0, kFirstSurrogate, kBehindSurrogates});
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  while (points.back() > kMaxCodePoint) points.pop_back();
  for (const uint32_t point : points) {
    const bool surrogate = point >= kFirstSurrogate && point < kBehindSurrogates;
    cuts_.push_back({point, surrogate ? 0 : 1});
  }
  size_ = 2;
}

template <typename Key>
void Alphabet::Refine(const Key& key) {
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> renamed;
  int32_t next = 1;
  for (Cut& cut : cuts_) {
    if (cut.symbol == 0) continue;
    const auto [it, added] = renamed.try_emplace({cut.symbol, key(cut)}, next);
    if (added) ++next;
    cut.symbol = it->second;
  }
  size_ = next;
}

absl::StatusOr<Alphabet> Alphabet::Of(absl::Span<const CodePointSet> sets, StepBudget* budget) {
  std::vector<uint32_t> points;
  for (const CodePointSet& set : sets) {
    ALUDEL_RETURN_IF_ERROR(budget->Spend(1 + static_cast<int64_t>(set.ranges().size())));
    for (const CodePointRange& range : set.ranges()) {
      points.push_back(range.first);
      points.push_back(range.last + 1);
    }
  }
  Alphabet alphabet;
  alphabet.CutAt(std::move(points));
  for (const CodePointSet& set : sets) {
    ALUDEL_RETURN_IF_ERROR(budget->Spend(1 + static_cast<int64_t>(alphabet.cuts_.size()) / kCutsPerStep));
    auto range = set.ranges().begin();
    alphabet.Refine([&](const Cut& cut) {
      while (range != set.ranges().end() && range->last < cut.first) ++range;
      return range != set.ranges().end() && range->first <= cut.first ? 1 : 0;
    });
  }
  return alphabet;
}

absl::StatusOr<Alphabet> Alphabet::Joint(absl::Span<const Alphabet* const> parts, StepBudget* budget) {
  std::vector<uint32_t> points;
  for (const Alphabet* part : parts) {
    for (const Cut& cut : part->cuts_) points.push_back(cut.first);
  }
  Alphabet alphabet;
  alphabet.CutAt(std::move(points));
  for (const Alphabet* part : parts) {
    ALUDEL_RETURN_IF_ERROR(budget->Spend(1 + static_cast<int64_t>(alphabet.cuts_.size()) / kCutsPerStep));
    size_t at = 0;
    alphabet.Refine([&](const Cut& cut) {
      while (at + 1 < part->cuts_.size() && part->cuts_[at + 1].first <= cut.first) ++at;
      return part->cuts_[at].symbol;
    });
  }
  return alphabet;
}

int32_t Alphabet::SymbolOf(uint32_t code_point) const {
  const auto next = std::upper_bound(cuts_.begin(), cuts_.end(), code_point,
                                     [](uint32_t at, const Cut& cut) { return at < cut.first; });
  return (next - 1)->symbol;
}

std::vector<int32_t> Alphabet::SymbolsIn(const CodePointSet& set) const {
  std::vector<bool> found(size_, false);
  std::vector<int32_t> symbols;
  auto range = set.ranges().begin();
  for (const Cut& cut : cuts_) {
    while (range != set.ranges().end() && range->last < cut.first) ++range;
    if (range == set.ranges().end()) break;
    if (range->first > cut.first || cut.symbol == 0 || found[cut.symbol]) continue;
    found[cut.symbol] = true;
    symbols.push_back(cut.symbol);
  }
  return symbols;
}

CodePointSet Alphabet::CharactersOf(absl::Span<const int32_t> symbols) const {
  std::vector<bool> wanted(size_, false);
  for (const int32_t symbol : symbols) wanted[symbol] = true;
  CodePointSet set;
  for (size_t i = 0; i < cuts_.size(); ++i) {
    if (!wanted[cuts_[i].symbol]) continue;
    set.Add(cuts_[i].first, i + 1 < cuts_.size() ? cuts_[i + 1].first - 1 : kMaxCodePoint);
  }
  return set;
}

std::vector<int32_t> Alphabet::In(const Alphabet& coarser) const {
  std::vector<int32_t> symbols(size_, 0);
  size_t at = 0;
  for (const Cut& cut : cuts_) {
    while (at + 1 < coarser.cuts_.size() && coarser.cuts_[at + 1].first <= cut.first) ++at;
    symbols[cut.symbol] = coarser.cuts_[at].symbol;
  }
  return symbols;
}

}  // namespace aludel
