#include "runtime/text/tokenizer/bpe/bpe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/byte_level.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

// What a thread keeps room for between texts.
constexpr size_t kKeptSymbols = 16 << 10;
constexpr char32_t kMetaspace = 0x2581;
constexpr absl::string_view kMetaspaceUtf8 = "\xe2\x96\x81";
constexpr char32_t kDirectCodePoints = 0x10000;

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
  ALUDEL_ASSIGN_OR_RETURN(bpe->vocabulary_, BpeVocabulary::FromJson(model, origin));
  ALUDEL_ASSIGN_OR_RETURN(bpe->merges_, BpeMerges::FromJson(model, bpe->vocabulary_, origin));
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
  for (const auto& [spelling, id] : vocabulary_.ids()) {
    std::string bytes;
    if (ByteLevelBytes(spelling, &bytes)) whole_pieces_[bytes] = id;
  }
  return absl::OkStatus();
}

void Bpe::PrepareCharacters() {
  start_ids_.assign(kDirectCodePoints, -1);
  for (const auto& [spelling, id] : vocabulary_.ids()) {
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
  for (const auto& [left, right] : merges_.list()) {
    if (!cuts_at_metaspace_) break;
    cuts_at_metaspace_ = !HasInnerMetaspace(spellings()[left] + spellings()[right]);
  }
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
  ALUDEL_RETURN_IF_ERROR(merges_.Apply(&symbols));
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

}  // namespace aludel
