#include "server/gateway/openai/answer/prompt_echo.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr size_t kPieceTokens = 128;  // in one event of a stream

bool ContinuesCharacter(char byte) { return (byte & 0xc0) == 0x80; }

int64_t Characters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !ContinuesCharacter(byte); });
}

// Finds tokens one after the other in the text that they were made of. A text may lack the names of special tokens, and
// the space that some tokenizers put in front of the first word.
class TextPlace {
 public:
  explicit TextPlace(absl::string_view text) : rest_(text) {}

  // The character at which a token of these bytes begins.
  int64_t Next(absl::string_view bytes, bool special) {
    const bool inside = !rest_.empty() && ContinuesCharacter(rest_[0]) && characters_ > 0;
    const int64_t begin = inside ? characters_ - 1 : characters_;
    absl::string_view bare = bytes;
    size_t taken = bytes.size();
    if (!absl::StartsWith(rest_, bytes)) {
      if (special) {
        taken = 0;
      } else if (absl::ConsumePrefix(&bare, " ") && absl::StartsWith(rest_, bare)) {
        taken = bare.size();
      }
    }
    taken = std::min(taken, rest_.size());
    characters_ += Characters(rest_.substr(0, taken));
    rest_.remove_prefix(taken);
    return begin;
  }

 private:
  absl::string_view rest_;
  int64_t characters_ = 0;
};

}  // namespace

void PromptEcho::Add(const v1::PromptLogprobs& piece) {
  const int entries = piece.ranks_size() * (1 + static_cast<int>(std::min<uint32_t>(piece.top(), 1000)));
  if (piece.tokens_size() != entries || piece.logprobs_size() != entries) return;
  if (piece.begin() == 1) scores_.Clear();
  const bool follows = piece.begin() == 1 + static_cast<uint32_t>(scores_.ranks_size());
  if (!follows || (scores_.ranks_size() > 0 && piece.top() != scores_.top())) return;
  if (piece.ranks_size() + piece.begin() > options_.ids.size()) return;
  scores_.MergeFrom(piece);
}

std::vector<v1::TokenLogprob> PromptEcho::Entries(size_t at, int top) const {
  std::vector<v1::TokenLogprob> entries;
  if (at == 0 || at > static_cast<size_t>(scores_.ranks_size())) return entries;
  const size_t size = 1 + scores_.top();
  for (size_t i = 0; i < std::min<size_t>(size, 1 + top); ++i) {
    const int from = static_cast<int>((at - 1) * size + i);
    entries.emplace_back().set_token(scores_.tokens(from));
    entries.back().set_logprob(scores_.logprobs(from));
  }
  return entries;
}

void PromptEcho::ForEachDelta(absl::FunctionRef<bool(const ChoiceDelta&)> take) const {
  if (!options_.echo) return;
  ChoiceDelta delta;
  delta.text = options_.text;
  if (!options_.echo_logprobs) {
    take(delta);
    return;
  }
  const LogprobsJson logprobs(/*chat=*/false, tokenizer_);
  TextPlace place(options_.text);
  for (size_t begin = 0; begin < options_.ids.size(); begin += kPieceTokens) {
    const size_t end = std::min(begin + kPieceTokens, options_.ids.size());
    ordered_json piece;
    for (size_t i = begin; i < end; ++i) {
      const int32_t id = options_.ids[i];
      const int64_t offset = place.Next(logprobs.Bytes(id), tokenizer_->IsSpecial(id));
      const ordered_json one = logprobs.PlainEntry(id, Entries(i, *options_.echo_logprobs), offset);
      for (const auto& [name, list] : one.items()) piece[name].push_back(list[0]);
    }
    delta.logprobs = std::move(piece);
    if (!take(delta)) return;
    delta.text.clear();
  }
}

int64_t PromptEcho::characters() const { return options_.echo ? Characters(options_.text) : 0; }

std::string PromptEcho::PromptLogprobsJson(size_t max_bytes) const {
  if (!options_.prompt_logprobs) return "";
  const LogprobsJson logprobs(/*chat=*/false, tokenizer_);
  std::string json = "[null";
  for (size_t i = 1; i < options_.ids.size() && json.size() <= max_bytes; ++i) {
    ordered_json one = nullptr;
    int rank = static_cast<int>(i) <= scores_.ranks_size() ? static_cast<int>(scores_.ranks(i - 1)) : 0;
    int next_rank = 1;
    for (const v1::TokenLogprob& entry : Entries(i, *options_.prompt_logprobs)) {
      if (one.is_null()) one = ordered_json::object();
      // The token itself may be among the likeliest: the first entry stands.
      one.emplace(absl::StrCat(entry.token()),
                  ordered_json{{"logprob", LogprobsJson::Finite(entry.logprob())},
                               {"rank", rank},
                               {"decoded_token", logprobs.Spelling(entry.token())}});
      rank = next_rank++;
    }
    absl::StrAppend(&json, ",", Dump(one));
  }
  return json + "]";
}

}  // namespace aludel
