#include "runtime/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxAddedTokens = 1u << 20;
constexpr int64_t kMaxId = (1 << 24) - 1;

bool StartsWithWord(absl::string_view text) {
  size_t at = 0;
  return !text.empty() && IsWordCharacter(NextCodePoint(text, &at));
}

bool EndsWithWord(absl::string_view text) {
  size_t at = text.size();
  return !text.empty() && IsWordCharacter(PreviousCodePoint(text, &at));
}

size_t SpaceBefore(absl::string_view text, size_t at, size_t limit) {
  for (size_t next = at; next > limit; at = next) {
    if (!IsWhiteSpace(PreviousCodePoint(text, &next))) break;
  }
  return std::max(at, limit);
}

size_t SpaceAfter(absl::string_view text, size_t at) {
  for (size_t next = at; next < text.size(); at = next) {
    if (!IsWhiteSpace(NextCodePoint(text, &next))) break;
  }
  return at;
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const json* list, const std::string& origin) {
  std::vector<AddedToken> result;
  if (list == nullptr) return result;
  if (!list->is_array() || list->size() > kMaxAddedTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, " is ", DescribeJson(*list), ", want an array of at most ", kMaxAddedTokens));
  }
  for (const json& item : *list) {
    const std::string where = absl::StrCat(origin, "[", result.size(), "]");
    ALUDEL_RETURN_IF_ERROR(CheckMembers(
        item, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, where));
    AddedToken token;
    ALUDEL_ASSIGN_OR_RETURN(token.content, StringMember(item, "content", "", where));
    if (token.content.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ": content is empty"));
    if (FindMember(item, "id") == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(where, ": id is missing"));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t id, IntMember(item, "id", 0, 0, kMaxId, where));
    token.id = static_cast<int32_t>(id);
    ALUDEL_ASSIGN_OR_RETURN(token.single_word, BoolMember(item, "single_word", false, where));
    ALUDEL_ASSIGN_OR_RETURN(token.lstrip, BoolMember(item, "lstrip", false, where));
    ALUDEL_ASSIGN_OR_RETURN(token.rstrip, BoolMember(item, "rstrip", false, where));
    ALUDEL_ASSIGN_OR_RETURN(token.special, BoolMember(item, "special", false, where));
    ALUDEL_ASSIGN_OR_RETURN(token.normalized, BoolMember(item, "normalized", !token.special, where));
    result.push_back(std::move(token));
  }
  return result;
}

void AddedTokenMatcher::Add(const AddedToken& token, absl::string_view spelling) {
  if (spelling.empty()) return;
  uint32_t node = 0;
  for (const char byte : spelling) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
    const auto [it, is_new] = children_.emplace(key, static_cast<uint32_t>(token_at_.size()));
    if (is_new) {
      token_at_.push_back(-1);
      has_children_.push_back(false);
      has_children_[node] = true;
    }
    node = it->second;
  }
  starts_[static_cast<uint8_t>(spelling[0])] = true;
  if (token_at_[node] < 0) token_at_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
}

int AddedTokenMatcher::LongestAt(absl::string_view text, size_t at, size_t* length, bool* cut_off) const {
  int longest = -1;
  uint32_t node = 0;
  size_t i = at;
  for (; i < text.size(); ++i) {
    const auto it = children_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    if (it == children_.end()) break;
    node = it->second;
    if (token_at_[node] >= 0) {
      longest = token_at_[node];
      *length = i + 1 - at;
    }
  }
  if (cut_off != nullptr) *cut_off = i == text.size() && has_children_[node];
  return longest;
}

size_t AddedTokenMatcher::LengthAt(absl::string_view text, size_t at, bool* cut_off) const {
  size_t length = 0;
  *cut_off = false;
  if (starts_[static_cast<uint8_t>(text[at])]) LongestAt(text, at, &length, cut_off);
  return length;
}

void AddedTokenMatcher::Split(absl::string_view text, std::vector<TokenSection>* sections) const {
  sections->clear();
  size_t done = 0;  // text before this is in a section
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const int found = starts_[static_cast<uint8_t>(text[at])] ? LongestAt(text, at, &length) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = at;
    size_t end = at + length;
    at = end;
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end))))
      continue;
    if (token.lstrip) begin = SpaceBefore(text, begin, std::min(done, begin));
    if (token.rstrip) end = SpaceAfter(text, end);
    if (begin > done) sections->push_back({Range(done, begin), -1});
    sections->push_back({Range(begin, end), token.id});
    done = end;
  }
  if (done < text.size()) sections->push_back({Range(done, text.size()), -1});
}

}  // namespace aludel
