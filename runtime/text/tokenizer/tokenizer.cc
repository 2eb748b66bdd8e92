#include "runtime/text/tokenizer/tokenizer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/files/json_reader.h"
#include "runtime/files/stop_scope.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/added_tokens.h"
#include "runtime/text/tokenizer/bpe/bpe.h"
#include "runtime/text/tokenizer/decoder.h"
#include "runtime/text/tokenizer/normalizer.h"
#include "runtime/text/tokenizer/post_processor.h"
#include "runtime/text/tokenizer/pre_tokenizer.h"
#include "runtime/text/tokenizer/tokenizer_config.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Every string with its length and every number in eight bytes, so that no two inputs spell the same bytes.
class CanonicalBytes {
 public:
  explicit CanonicalBytes(absl::string_view kind) { Add(kind); }

  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  void Add(absl::string_view value) {
    Add(uint64_t{value.size()});
    absl::StrAppend(&bytes_, value);
  }
  void Add(const Bpe& bpe) {
    Add(uint64_t{bpe.spellings().size()});
    for (const std::string& spelling : bpe.spellings()) Add(absl::string_view(spelling));
    Add(uint64_t{bpe.merge_list().size()});
    for (const auto& [left, right] : bpe.merge_list()) {
      Add(static_cast<uint64_t>(left));
      Add(static_cast<uint64_t>(right));
    }
  }
  void Add(const AddedToken& token) {
    Add(static_cast<uint64_t>(token.id));
    Add(absl::string_view(token.content));
    Add(static_cast<uint64_t>(token.single_word | token.lstrip << 1 | token.rstrip << 2 |
                              token.normalized << 3 | token.special << 4));
  }

  std::string Sha256() const {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    if (EVP_Digest(bytes_.data(), bytes_.size(), digest, &size, EVP_sha256(), nullptr) != 1) return "";
    return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  }

 private:
  std::string bytes_;
};

// The stages of a tokenizer.json, in the order in which a text passes them: added tokens of the raw text,
// normalizer, added tokens of the normalized text, pre-tokenizer, BPE, post-processor; and the decoder for
// the way back. `truncation` and `padding` are left out: transformers resets both for every call.
class BpeTokenizer : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const json& root, const std::string& origin) {
    std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer());
    ALUDEL_RETURN_IF_ERROR(tokenizer->Read(root, origin));
    return tokenizer;
  }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special_tokens,
                                              absl::string_view joint) const override;
  std::string BreakSpecialTokens(absl::string_view text, absl::string_view joint) const override;
  absl::Status CanBreakSpecialTokens() const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override;

  std::string TokenBytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size() || !exists_[id] || IsSpecial(id)) return "";
    return decoder_.TokenBytes(spellings_[id]);
  }

  int vocab_size() const override { return static_cast<int>(spellings_.size()); }
  bool IsSpecial(int32_t id) const override { return special_ids_.count(id) != 0; }
  int32_t TokenToId(absl::string_view token) const override {
    const auto it = added_ids_.find(token);
    return it != added_ids_.end() ? it->second : bpe_->Find(token);
  }
  const std::string& fingerprint() const override { return fingerprint_; }
  const std::string& vocabulary_fingerprint() const override { return vocabulary_fingerprint_; }

 private:
  BpeTokenizer() = default;
  absl::Status Read(const json& root, const std::string& origin);
  absl::Status AddTokens(const std::vector<AddedToken>& tokens, const std::string& origin);
  absl::Status EncodeSection(absl::string_view text, bool at_start, absl::string_view joint,
                             std::vector<int32_t>* ids) const;
  absl::Status EncodePlain(absl::string_view text, bool at_start, absl::string_view joint,
                           std::vector<int32_t>* ids) const;
  void ComputeFingerprints(std::vector<AddedToken> tokens);

  AddedTokenMatcher raw_tokens_;
  AddedTokenMatcher normalized_tokens_;
  AddedTokenMatcher special_tokens_;  // of both, those that are special
  std::vector<AddedToken> special_list_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Bpe> bpe_;
  PostProcessor post_processor_;
  Decoder decoder_;
  // By id: spelling of the vocabulary or content of the added token; exists_ tells a hole from an
  // empty token.
  std::vector<std::string> spellings_;
  std::vector<bool> exists_;
  std::set<int32_t> special_ids_;
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  std::string fingerprint_;
  std::string vocabulary_fingerprint_;
};

absl::Status BpeTokenizer::Read(const json& root, const std::string& origin) {
  ALUDEL_RETURN_IF_ERROR(CheckMembers(root,
                                      {"version", "truncation", "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model"},
                                      origin));
  ALUDEL_ASSIGN_OR_RETURN(normalizer_,
                          Normalizer::FromJson(FindMember(root, "normalizer"), origin + ": normalizer"));
  ALUDEL_ASSIGN_OR_RETURN(
      pre_tokenizer_, PreTokenizer::FromJson(FindMember(root, "pre_tokenizer"), origin + ": pre_tokenizer"));
  ALUDEL_ASSIGN_OR_RETURN(post_processor_, PostProcessor::FromJson(FindMember(root, "post_processor"),
                                                                   origin + ": post_processor"));
  ALUDEL_ASSIGN_OR_RETURN(decoder_, Decoder::FromJson(FindMember(root, "decoder"), origin + ": decoder"));
  const json* model = FindMember(root, "model");
  if (model == nullptr) return absl::InvalidArgumentError(absl::StrCat(origin, ": model is missing"));
  ALUDEL_ASSIGN_OR_RETURN(bpe_, Bpe::FromJson(*model, pre_tokenizer_.byte_level(), origin + ": model"));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<AddedToken> tokens,
                          ReadAddedTokens(FindMember(root, "added_tokens"), origin + ": added_tokens"));
  ALUDEL_RETURN_IF_ERROR(AddTokens(tokens, origin));
  for (const std::vector<int32_t>* ids : {&post_processor_.before, &post_processor_.after}) {
    for (const int32_t id : *ids) {
      if (id < vocab_size() && exists_[id]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": post_processor adds id ", id, ", which is no token"));
    }
  }
  ComputeFingerprints(tokens);
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddTokens(const std::vector<AddedToken>& tokens, const std::string& origin) {
  spellings_ = bpe_->spellings();
  exists_.resize(spellings_.size());
  for (size_t id = 0; id < spellings_.size(); ++id) exists_[id] = bpe_->Find(spellings_[id]) == id;
  for (const AddedToken& token : tokens) {
    const std::string where = absl::StrCat(origin, ": added token \"", token.content, "\"");
    const int32_t known = TokenToId(token.content);
    if (known >= 0 && known != token.id) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": id is ", token.id, ", but the file also gives it ", known));
    }
    if (token.id >= vocab_size()) {
      spellings_.resize(token.id + 1);
      exists_.resize(token.id + 1);
    }
    if (exists_[token.id] && spellings_[token.id] != token.content) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": id ", token.id, " already belongs to \"", spellings_[token.id], "\""));
    }
    spellings_[token.id] = token.content;
    exists_[token.id] = true;
    added_ids_[token.content] = token.id;
    if (token.special) special_ids_.insert(token.id);
    std::string spelling = token.content;
    if (token.normalized) ALUDEL_RETURN_IF_ERROR(normalizer_.Apply(&spelling));
    (token.normalized ? normalized_tokens_ : raw_tokens_).Add(token, spelling);
    if (token.special) {
      special_tokens_.Add(token, token.content);
      special_list_.push_back(token);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(absl::string_view text, bool add_special_tokens,
                                                          absl::string_view joint) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text is ", text.size(), " bytes, want at most ", kMaxTextBytes));
  }
  if (const size_t invalid = FirstInvalidUtf8(text); invalid != text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("text is not UTF-8 at byte ", invalid));
  }
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = post_processor_.before;
  std::vector<TokenSection> sections;
  raw_tokens_.Split(text, &sections);
  for (const TokenSection& section : sections) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    ALUDEL_RETURN_IF_ERROR(EncodeSection(text.substr(section.range.begin, section.range.size()),
                                         section.range.begin == 0, joint, &ids));
  }
  if (add_special_tokens) ids.insert(ids.end(), post_processor_.after.begin(), post_processor_.after.end());
  return ids;
}

// Text between raw added tokens: normalize, then look for the added tokens of the normalized text.
absl::Status BpeTokenizer::EncodeSection(absl::string_view text, bool at_start, absl::string_view joint,
                                         std::vector<int32_t>* ids) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    normalized = std::string(text);
    ALUDEL_RETURN_IF_ERROR(normalizer_.Apply(&normalized));
    text = normalized;
  }
  if (normalized_tokens_.empty()) return EncodePlain(text, at_start, joint, ids);
  std::vector<TokenSection> sections;
  normalized_tokens_.Split(text, &sections);
  for (const TokenSection& section : sections) {
    if (section.id >= 0) {
      ids->push_back(section.id);
      continue;
    }
    ALUDEL_RETURN_IF_ERROR(EncodePlain(text.substr(section.range.begin, section.range.size()),
                                       at_start && section.range.begin == 0, joint, ids));
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::EncodePlain(absl::string_view text, bool at_start, absl::string_view joint,
                                       std::vector<int32_t>* ids) const {
  Pieces pieces;
  // Where added tokens are looked for, the joints have done their work.
  pieces.text = joint.empty() ? std::string(text) : absl::StrReplaceAll(text, {{joint, ""}});
  if (pieces.text.empty()) return absl::OkStatus();
  pieces.ranges = {Range(0, pieces.text.size())};
  pieces.at_start = at_start;
  ALUDEL_RETURN_IF_ERROR(pre_tokenizer_.Apply(&pieces));
  const absl::string_view cut = pieces.text;
  for (const TextRange& range : pieces.ranges) {
    ALUDEL_RETURN_IF_ERROR(CheckStop());
    ALUDEL_RETURN_IF_ERROR(bpe_->Encode(cut.substr(range.begin, range.size()), ids));
  }
  return absl::OkStatus();
}

std::string BpeTokenizer::BreakSpecialTokens(absl::string_view text, absl::string_view joint) const {
  std::string broken;
  size_t copied = 0;
  bool ends_within = false;
  for (size_t at = 0; at < text.size();) {
    bool cut_off = false;
    const bool spells = special_tokens_.LengthAt(text, at, &cut_off) > 0;
    ends_within |= cut_off;
    NextCodePoint(text, &at);
    if (!spells) continue;
    absl::StrAppend(&broken, text.substr(copied, at - copied), joint);
    copied = at;
  }
  absl::StrAppend(&broken, text.substr(copied));
  if (ends_within) absl::StrAppend(&broken, joint);
  return broken;
}

absl::Status BpeTokenizer::CanBreakSpecialTokens() const {
  constexpr char kJoint[] = "\xf4\x8f\xbf\xbd";  // U+10FFFD, of private use
  for (const AddedToken& token : special_list_) {
    if (token.normalized && !normalizer_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the normalizer may make the special token \"", token.content, "\" of other text"));
    }
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            Encode(BreakSpecialTokens(token.content, kJoint), false, kJoint));
    if (std::any_of(ids.begin(), ids.end(), [this](int32_t id) { return IsSpecial(id); })) {
      return absl::FailedPreconditionError(
          absl::StrCat("the special token \"", token.content, "\" cannot be told from text that spells it"));
    }
  }
  return absl::OkStatus();
}

std::string BpeTokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || !exists_[id]) continue;
    if (skip_special_tokens && IsSpecial(id)) continue;
    tokens.push_back(spellings_[id]);
  }
  return decoder_.Decode(std::move(tokens));
}

void BpeTokenizer::ComputeFingerprints(std::vector<AddedToken> tokens) {
  CanonicalBytes vocabulary("aludel vocabulary 1");
  vocabulary.Add(*bpe_);
  vocabulary_fingerprint_ = vocabulary.Sha256();
  CanonicalBytes all("aludel tokenizer 1");
  all.Add(*bpe_);
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  all.Add(uint64_t{tokens.size()});
  for (const AddedToken& token : tokens) all.Add(token);
  fingerprint_ = all.Sha256();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(absl::string_view text,
                                                               absl::string_view origin) {
  ALUDEL_ASSIGN_OR_RETURN(const json root, ParseJson(text, origin, kTokenizerJsonDepth));
  return BpeTokenizer::Make(root, std::string(origin));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& directory,
                                                           std::vector<std::string>* warnings) {
  ALUDEL_ASSIGN_OR_RETURN(const json root, LoadTokenizerJson(directory, warnings));
  return BpeTokenizer::Make(root, absl::StrCat(directory, "/tokenizer.json"));
}

}  // namespace aludel
