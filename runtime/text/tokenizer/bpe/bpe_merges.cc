#include "runtime/text/tokenizer/bpe/bpe_merges.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/files/stop_scope.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxMerges = 1u << 24;
// Up to here a scan for the lowest rank beats a queue.
constexpr size_t kShortPiece = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The two sides of a merge: "a b" or ["a", "b"].
bool SplitMerge(const json& merge, absl::string_view* left, absl::string_view* right) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    *left = merge[0].get_ref<const std::string&>();
    *right = merge[1].get_ref<const std::string&>();
    return true;
  }
  if (!merge.is_string()) return false;
  const absl::string_view text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == absl::string_view::npos || text.find(' ', space + 1) != absl::string_view::npos) return false;
  *left = text.substr(0, space);
  *right = text.substr(space + 1);
  return true;
}

}  // namespace

absl::StatusOr<BpeMerges> BpeMerges::FromJson(const json& model, const BpeVocabulary& vocabulary,
                                              const std::string& origin) {
  const json* merges = FindMember(model, "merges");
  if (merges == nullptr || !merges->is_array() || merges->size() > kMaxMerges) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": merges is ",
                                                   merges == nullptr ? "missing" : DescribeJson(*merges),
                                                   ", want an array of at most ", kMaxMerges));
  }
  BpeMerges made;
  made.merges_.reserve(merges->size());
  made.list_.reserve(merges->size());
  for (const json& merge : *merges) {
    const size_t rank = made.list_.size();
    absl::string_view left, right;
    if (!SplitMerge(merge, &left, &right)) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": merges[", rank, "] is ", DescribeJson(merge),
                                                     ", want \"LEFT RIGHT\" or [LEFT, RIGHT]"));
    }
    const std::string together = absl::StrCat(left, right);
    for (const absl::string_view part : {left, right, absl::string_view(together)}) {
      if (vocabulary.Find(part) < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(origin, ": merges[", rank, "]: \"", part, "\" is not in the vocabulary"));
      }
    }
    const int32_t left_id = vocabulary.Find(left), right_id = vocabulary.Find(right);
    made.merges_[PairKey(left_id, right_id)] = {static_cast<uint32_t>(rank), vocabulary.Find(together)};
    made.list_.emplace_back(left_id, right_id);
  }
  return made;
}

absl::Status BpeMerges::Apply(std::vector<int32_t>* symbols) const {
  if (symbols->size() > kShortPiece) return ApplyLong(symbols);
  ApplyShort(symbols);
  return absl::OkStatus();
}

const BpeMerges::Merge* BpeMerges::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void BpeMerges::ApplyShort(std::vector<int32_t>* symbols) const {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<int32_t>& ids = *symbols;
  size_t count = ids.size();
  Merge merges[kShortPiece];  // merges[i] of ids[i] and ids[i + 1]
  const auto look_up = [&](size_t i) {
    const Merge* merge = Find(ids[i], ids[i + 1]);
    merges[i] = merge != nullptr ? *merge : Merge{kNone, 0};
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNone) break;
    ids[best] = merges[best].merged;
    std::copy(ids.begin() + best + 2, ids.begin() + count, ids.begin() + best + 1);
    if (best + 2 < count) std::copy(merges + best + 2, merges + count - 1, merges + best + 1);
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  ids.resize(count);
}

// The pair of the lowest rank, leftmost first, by a queue. Symbols that were merged into their left neighbor stay where
// they were as kGone, so that neighbors are found by walking over at most as many as a token has characters. In the
// queue a pair is its rank and its place: 8 bytes for each byte of a text that no pre-tokenizer cuts.
absl::Status BpeMerges::ApplyLong(std::vector<int32_t>* symbols) const {
  constexpr int32_t kGone = -1;
  constexpr size_t kEnd = SIZE_MAX;
  std::vector<int32_t>& ids = *symbols;
  const auto next = [&ids](size_t at) {
    for (++at; at < ids.size(); ++at) {
      if (ids[at] != kGone) return at;
    }
    return kEnd;
  };
  const auto previous = [&ids](size_t at) {
    while (at-- > 0) {
      if (ids[at] != kGone) return at;
    }
    return kEnd;
  };
  std::vector<uint64_t> first;  // rank << 32 | place of the left one
  first.reserve(ids.size());
  for (size_t at = 0; at + 1 < ids.size(); ++at) {
    if (const Merge* merge = Find(ids[at], ids[at + 1])) first.push_back(uint64_t{merge->rank} << 32 | at);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(),
                                                                             std::move(first));
  const auto offer = [&](size_t at) {
    if (at == kEnd) return;
    const size_t right = next(at);
    if (right == kEnd) return;
    const Merge* merge = Find(ids[at], ids[right]);
    if (merge != nullptr) queue.push(uint64_t{merge->rank} << 32 | at);
  };
  while (!queue.empty()) {
    ALUDEL_RETURN_IF_ERROR(CheckStop());
    const auto rank = static_cast<uint32_t>(queue.top() >> 32);
    const size_t at = queue.top() & UINT32_MAX;
    queue.pop();
    // Entries outlive the pair that they were made for; a rank belongs to one pair.
    if (ids[at] == kGone) continue;
    const size_t gone = next(at);
    if (gone == kEnd) continue;
    const Merge* merge = Find(ids[at], ids[gone]);
    if (merge == nullptr || merge->rank != rank) continue;
    ids[at] = merge->merged;
    ids[gone] = kGone;
    offer(previous(at));
    offer(at);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), kGone), ids.end());
  return absl::OkStatus();
}

}  // namespace aludel
