#include "runtime/text/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/files/json_reader.h"
#include "runtime/files/stop_scope.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/byte_level.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxVocabulary = 1u << 24;
constexpr size_t kMaxMerges = 1u << 24;
// Up to here a scan for the lowest rank beats a queue.
constexpr size_t kShortPiece = 48;
// What a thread keeps room for between texts.
constexpr size_t kKeptSymbols = 16 << 10;
constexpr char32_t kMetaspace = 0x2581;
constexpr absl::string_view kMetaspaceUtf8 = "\xe2\x96\x81";
constexpr char32_t kDirectCodePoints = 0x10000;

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

// Whether U+2581 follows another character somewhere in `spelling`.
bool HasInnerMetaspace(absl::string_view spelling) {
  bool seen_other = false;
  for (size_t i = 0; i < spelling.size();) {
    const bool is_metaspace = NextCodePoint(spelling, &i) == kMetaspace;
    if (is_metaspace && seen_other) return true;
    seen_other = seen_other || !is_metaspace;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::FromJson(const json& model, bool byte_level,
                                                   const std::string& origin) {
  ALUDEL_RETURN_IF_ERROR(
      CheckMembers(model,
                   {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
                   origin));
  ALUDEL_ASSIGN_OR_RETURN(const std::string type, StringMember(model, "type", "BPE", origin));
  if (type != "BPE") {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": type is \"", type, "\", want \"BPE\""));
  }
  ALUDEL_ASSIGN_OR_RETURN(const double dropout, NumberMember(model, "dropout", 0.0, 0.0, 1.0, origin));
  if (dropout != 0.0) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": dropout is ", dropout, ", want none"));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string value, StringMember(model, name, "", origin));
    if (!value.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", name, " is \"", value, "\", want none"));
    }
  }
  std::unique_ptr<Bpe> bpe(new Bpe());
  bpe->byte_level_ = byte_level;
  ALUDEL_ASSIGN_OR_RETURN(bpe->fuse_unk_, BoolMember(model, "fuse_unk", false, origin));
  ALUDEL_ASSIGN_OR_RETURN(bpe->byte_fallback_, BoolMember(model, "byte_fallback", false, origin));
  ALUDEL_ASSIGN_OR_RETURN(bpe->ignore_merges_, BoolMember(model, "ignore_merges", false, origin));
  ALUDEL_RETURN_IF_ERROR(bpe->ReadVocabulary(model, origin));
  ALUDEL_RETURN_IF_ERROR(bpe->ReadMerges(model, origin));
  ALUDEL_ASSIGN_OR_RETURN(const std::string unk, StringMember(model, "unk_token", "", origin));
  if (!unk.empty()) {
    bpe->unk_id_ = bpe->Find(unk);
    if (bpe->unk_id_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": unk_token \"", unk, "\" is not in the vocabulary"));
    }
  }
  if (byte_level) {
    ALUDEL_RETURN_IF_ERROR(bpe->PrepareBytes(origin));
  } else {
    bpe->PrepareCharacters();
  }
  return bpe;
}

absl::Status Bpe::ReadVocabulary(const json& model, const std::string& origin) {
  const json* vocab = FindMember(model, "vocab");
  if (vocab == nullptr || !vocab->is_object() || vocab->empty() || vocab->size() > kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": vocab is ",
                                                   vocab == nullptr ? "missing" : DescribeJson(*vocab),
                                                   ", want an object of 1 to ", kMaxVocabulary, " tokens"));
  }
  uint64_t largest = 0;
  for (const auto& [spelling, id] : vocab->items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": vocab: id of \"", spelling, "\" is ",
                                                     DescribeJson(id), ", want 0 to ", kMaxVocabulary - 1));
    }
    largest = std::max(largest, id.get<uint64_t>());
  }
  spellings_.resize(largest + 1);
  std::vector<bool> taken(spellings_.size());
  for (const auto& [spelling, json_id] : vocab->items()) {
    const auto id = json_id.get<size_t>();
    if (taken[id]) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": vocab: id ", id, " belongs to \"", spelling,
                                                     "\" and to \"", spellings_[id], "\""));
    }
    taken[id] = true;
    spellings_[id] = spelling;
  }
  ids_.reserve(vocab->size());
  for (size_t id = 0; id < spellings_.size(); ++id) {
    if (taken[id]) ids_[spellings_[id]] = static_cast<int32_t>(id);
  }
  return absl::OkStatus();
}

absl::Status Bpe::ReadMerges(const json& model, const std::string& origin) {
  const json* merges = FindMember(model, "merges");
  if (merges == nullptr || !merges->is_array() || merges->size() > kMaxMerges) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": merges is ",
                                                   merges == nullptr ? "missing" : DescribeJson(*merges),
                                                   ", want an array of at most ", kMaxMerges));
  }
  merges_.reserve(merges->size());
  merge_list_.reserve(merges->size());
  for (const json& merge : *merges) {
    const size_t rank = merge_list_.size();
    absl::string_view left, right;
    if (!SplitMerge(merge, &left, &right)) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": merges[", rank, "] is ", DescribeJson(merge),
                                                     ", want \"LEFT RIGHT\" or [LEFT, RIGHT]"));
    }
    const std::string together = absl::StrCat(left, right);
    for (const absl::string_view part : {left, right, absl::string_view(together)}) {
      if (Find(part) < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(origin, ": merges[", rank, "]: \"", part, "\" is not in the vocabulary"));
      }
    }
    const int32_t left_id = Find(left), right_id = Find(right);
    merges_[PairKey(left_id, right_id)] = {static_cast<uint32_t>(rank), Find(together)};
    merge_list_.emplace_back(left_id, right_id);
  }
  return absl::OkStatus();
}

absl::Status Bpe::PrepareBytes(const std::string& origin) {
  start_ids_.assign(256, -1);
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &spelling);
    start_ids_[byte] = Find(spelling);
    if (start_ids_[byte] < 0 && byte_fallback_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: vocab has no token for byte 0x%02X, want all 256 where a ByteLevel "
                          "pre_tokenizer meets byte_fallback",
                          origin, byte));
    }
  }
  if (!ignore_merges_) return absl::OkStatus();
  for (const auto& [spelling, id] : ids_) {
    std::string bytes;
    if (ByteLevelBytes(spelling, &bytes)) whole_pieces_[bytes] = id;
  }
  return absl::OkStatus();
}

void Bpe::PrepareCharacters() {
  start_ids_.assign(kDirectCodePoints, -1);
  for (const auto& [spelling, id] : ids_) {
    if (spelling.empty()) continue;
    size_t end = 0;
    const char32_t code_point = NextCodePoint(spelling, &end);
    if (end == spelling.size() && code_point < kDirectCodePoints) start_ids_[code_point] = id;
    if (ignore_merges_) whole_pieces_[std::string(spelling)] = id;
  }
  if (byte_fallback_) {
    byte_ids_.assign(256, -1);
    for (int byte = 0; byte < 256; ++byte) byte_ids_[byte] = Find(absl::StrFormat("<0x%02X>", byte));
  }
  cuts_at_metaspace_ = !ignore_merges_ && start_ids_[kMetaspace] >= 0;
  for (const auto& [left, right] : merge_list_) {
    if (!cuts_at_metaspace_) break;
    cuts_at_metaspace_ = !HasInnerMetaspace(spellings_[left] + spellings_[right]);
  }
}

int32_t Bpe::Find(absl::string_view spelling) const {
  const auto it = ids_.find(spelling);
  return it == ids_.end() ? -1 : it->second;
}

absl::Status Bpe::Encode(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (!cuts_at_metaspace_) return EncodeWhole(piece, ids);
  while (!piece.empty()) {
    // The next U+2581 that does not follow another one.
    size_t cut = 0;
    while (piece.substr(cut, kMetaspaceUtf8.size()) == kMetaspaceUtf8) cut += kMetaspaceUtf8.size();
    cut = std::min(piece.find(kMetaspaceUtf8, cut), piece.size());
    ALUDEL_RETURN_IF_ERROR(EncodeWhole(piece.substr(0, cut), ids));
    piece.remove_prefix(cut);
  }
  return absl::OkStatus();
}

absl::Status Bpe::EncodeWhole(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const auto it = whole_pieces_.find(piece);
    if (it != whole_pieces_.end()) {
      ids->push_back(it->second);
      return absl::OkStatus();
    }
  }
  static thread_local std::vector<int32_t> symbols;
  ALUDEL_RETURN_IF_ERROR(StartSymbols(piece, &symbols));
  if (symbols.size() <= kShortPiece) {
    MergeShort(&symbols);
  } else {
    ALUDEL_RETURN_IF_ERROR(MergeLong(&symbols));
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > kKeptSymbols) symbols = {};
  return absl::OkStatus();
}

absl::Status Bpe::StartSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const {
  symbols->clear();
  // As in HuggingFace's BPE, an unknown token waits for the next known character, so that a run of unknown
  // characters can fuse.
  bool unk_waits = false;
  for (size_t i = 0; i < piece.size();) {
    const size_t start = i;
    char32_t character = static_cast<uint8_t>(piece[i]);
    int32_t id = -1;
    if (byte_level_) {
      id = start_ids_[character];
      ++i;
    } else {
      character = NextCodePoint(piece, &i);
      id = character < kDirectCodePoints ? start_ids_[character] : Find(piece.substr(start, i - start));
    }
    if (id >= 0) {
      if (unk_waits) symbols->push_back(unk_id_);
      unk_waits = false;
      symbols->push_back(id);
      continue;
    }
    if (byte_fallback_ && !byte_level_) {
      const absl::string_view bytes = piece.substr(start, i - start);
      const auto byte_id = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
      if (std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
        for (const char byte : bytes) symbols->push_back(byte_id(byte));
        continue;
      }
    }
    if (unk_id_ < 0) {
      const auto value = static_cast<uint32_t>(character);
      return absl::InvalidArgumentError(absl::StrCat(
          "the vocabulary has no token for ",
          byte_level_ ? absl::StrFormat("byte 0x%02X", value) : absl::StrFormat("character U+%04X", value),
          " and no unk_token"));
    }
    if (unk_waits && !fuse_unk_) symbols->push_back(unk_id_);
    unk_waits = true;
  }
  if (unk_waits) symbols->push_back(unk_id_);
  return absl::OkStatus();
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::MergeShort(std::vector<int32_t>* symbols) const {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<int32_t>& ids = *symbols;
  size_t count = ids.size();
  Merge merges[kShortPiece];  // merges[i] of ids[i] and ids[i + 1]
  const auto look_up = [&](size_t i) {
    const Merge* merge = FindMerge(ids[i], ids[i + 1]);
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
absl::Status Bpe::MergeLong(std::vector<int32_t>* symbols) const {
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
    if (const Merge* merge = FindMerge(ids[at], ids[at + 1]))
      first.push_back(uint64_t{merge->rank} << 32 | at);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(),
                                                                             std::move(first));
  const auto offer = [&](size_t at) {
    if (at == kEnd) return;
    const size_t right = next(at);
    if (right == kEnd) return;
    const Merge* merge = FindMerge(ids[at], ids[right]);
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
    const Merge* merge = FindMerge(ids[at], ids[gone]);
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
