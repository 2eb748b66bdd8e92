#include "runtime/text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/nesting.h"
#include "runtime/text/tokenizer/pattern.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

// GPT-2's words: contractions, then letters, numbers, other characters, each with one leading space, then
// white space without the space that belongs to the next word.
constexpr char kGpt2Words[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What happens to the text that a pattern matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Puts what a pattern matches, and what lies between its matches, together as `behavior` says, as it comes: a text may have
// as many matches as bytes.
class Joiner {
 public:
  Joiner(Behavior behavior, bool invert, std::vector<TextRange>* joined)
      : behavior_(behavior), invert_(invert), joined_(joined) {}

  // Begins a piece of the text.
  void Begin(TextRange piece) {
    piece_ = piece;
    covered_ = 0;
    held_.reset();
  }
  // Within the piece.
  void Match(TextRange match) {
    if (match.begin > covered_) Push({covered_, match.begin}, invert_);
    Push(match, !invert_);
    covered_ = match.end;
  }
  void End() {
    if (covered_ < piece_.size()) Push(Range(covered_, piece_.size()), invert_);
    Flush();
  }

 private:
  // An empty match still ends the section before it.
  void Push(TextRange section, bool is_match) {
    const bool after_match = std::exchange(last_is_match_, is_match);
    const bool removed = behavior_ == Behavior::kRemoved && is_match;
    if (held_ && Joins(is_match, after_match)) {
      held_->end = section.end;
      return;
    }
    Flush();
    if (!removed) held_ = section;
  }
  bool Joins(bool is_match, bool after_match) const {
    switch (behavior_) {
      case Behavior::kRemoved:
      case Behavior::kIsolated:
        return false;
      case Behavior::kContiguous:
        return is_match == after_match;
      case Behavior::kMergedWithPrevious:
        return is_match && !after_match;
      case Behavior::kMergedWithNext:
        return !is_match && after_match;
    }
    return false;
  }
  void Flush() {
    if (held_ && held_->size() > 0)
      joined_->push_back({piece_.begin + held_->begin, piece_.begin + held_->end});
    held_.reset();
  }

  const Behavior behavior_;
  const bool invert_;
  std::vector<TextRange>* const joined_;
  TextRange piece_;
  uint32_t covered_ = 0;           // of the piece, by matches and gaps
  std::optional<TextRange> held_;  // the last section, which the next may join
  bool last_is_match_ = false;
};

// Cuts every piece at what `find(text, found)` finds in it.
template <typename Find>
absl::Status Cut(const Find& find, Behavior behavior, bool invert, Pieces* pieces) {
  const absl::string_view text = pieces->text;
  std::vector<TextRange> result;
  result.reserve(pieces->ranges.size());
  Joiner joiner(behavior, invert, &result);
  for (const TextRange& piece : pieces->ranges) {
    joiner.Begin(piece);
    ALUDEL_RETURN_IF_ERROR(
        find(text.substr(piece.begin, piece.size()), [&joiner](TextRange match) { joiner.Match(match); }));
    joiner.End();
  }
  pieces->ranges = std::move(result);
  return absl::OkStatus();
}

// Rewrites every piece through `rewrite(piece, is_first_of_the_input, &output)`.
template <typename Rewrite>
void RewriteEach(const Rewrite& rewrite, Pieces* pieces) {
  std::string text;
  text.reserve(pieces->text.size() + pieces->ranges.size());
  bool at_start = pieces->at_start && !pieces->ranges.empty() && pieces->ranges[0].begin == 0;
  pieces->at_start = at_start;
  for (TextRange& range : pieces->ranges) {
    const size_t begin = text.size();
    rewrite(absl::string_view(pieces->text).substr(range.begin, range.size()), at_start, &text);
    range = Range(begin, text.size());
    at_start = false;
  }
  pieces->text = std::move(text);
}

class Split : public PreTokenizer::Step {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(Pieces* pieces) const override {
    const auto find = [&](absl::string_view text, absl::FunctionRef<void(TextRange)> found) {
      return pattern_.ForEach(text, found);
    };
    return Cut(find, behavior_, invert_, pieces);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class Digits : public PreTokenizer::Step {
 public:
  explicit Digits(bool individual) : behavior_(individual ? Behavior::kIsolated : Behavior::kContiguous) {}
  absl::Status Apply(Pieces* pieces) const override {
    const auto find = [](absl::string_view text, absl::FunctionRef<void(TextRange)> found) {
      for (size_t i = 0; i < text.size();) {
        const size_t begin = i;
        if (!IsNumeric(NextCodePoint(text, &i))) continue;
        found(Range(begin, i));
      }
      return absl::OkStatus();
    };
    return Cut(find, behavior_, /*invert=*/false, pieces);
  }

 private:
  Behavior behavior_;
};

class AddPrefixSpace : public PreTokenizer::Step {
 public:
  absl::Status Apply(Pieces* pieces) const override {
    const auto rewrite = [](absl::string_view piece, bool, std::string* text) {
      if (!absl::StartsWith(piece, " ")) *text += ' ';
      text->append(piece.data(), piece.size());
    };
    RewriteEach(rewrite, pieces);
    return absl::OkStatus();
  }
};

enum class PrependScheme { kAlways, kFirst, kNever };

class SplitAtSpaces : public PreTokenizer::Step {
 public:
  SplitAtSpaces(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  absl::Status Apply(Pieces* pieces) const override {
    const auto rewrite = [&](absl::string_view piece, bool at_start, std::string* text) {
      const bool prepends =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && at_start);
      if (prepends && !absl::StartsWith(piece, " ") && !absl::StartsWith(piece, replacement_)) {
        *text += replacement_;
      }
      for (const char byte : piece) {
        if (byte == ' ') {
          *text += replacement_;
        } else {
          *text += byte;
        }
      }
    };
    RewriteEach(rewrite, pieces);
    if (!split_) return absl::OkStatus();
    const auto find = [&](absl::string_view text, absl::FunctionRef<void(TextRange)> found) {
      for (size_t at = text.find(replacement_); at != absl::string_view::npos;
           at = text.find(replacement_, at + replacement_.size())) {
        found(Range(at, at + replacement_.size()));
      }
      return absl::OkStatus();
    };
    return Cut(find, Behavior::kMergedWithNext, /*invert=*/false, pieces);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

absl::StatusOr<Behavior> ReadBehavior(const json& config, const std::string& where) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(config, "behavior", "", where));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": behavior is \"", name,
                   "\", want Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous"));
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const json* config, const std::string& origin) {
  PreTokenizer result;
  if (config == nullptr || config->is_null()) return result;
  ALUDEL_RETURN_IF_ERROR(result.Add(*config, origin, 0));
  return result;
}

absl::Status PreTokenizer::Add(const json& config, const std::string& origin, int depth) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string type, StringMember(config, "type", "", origin));
  const std::string where = absl::StrCat(origin, ": ", type);
  // ByteLevel turns the text into spelled bytes; what comes after it would see those.
  if (byte_level_)
    return absl::InvalidArgumentError(absl::StrCat(where, " follows ByteLevel, want that last"));
  if (type == "Sequence" && depth < kMaxSequenceNesting) {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "pretokenizers"}, where));
    const json* list = FindMember(config, "pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": pretokenizers is no array"));
    }
    for (const json& step : *list) ALUDEL_RETURN_IF_ERROR(Add(step, origin, depth + 1));
    return absl::OkStatus();
  }
  if (type == "Split") return AddSplit(config, where);
  if (type == "Metaspace") return AddMetaspace(config, where);
  if (type == "Digits") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "individual_digits"}, where));
    ALUDEL_ASSIGN_OR_RETURN(const bool individual, BoolMember(config, "individual_digits", false, where));
    steps_.push_back(std::make_unique<Digits>(individual));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    ALUDEL_RETURN_IF_ERROR(
        CheckMembers(config, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where));
    ALUDEL_ASSIGN_OR_RETURN(const bool prefix, BoolMember(config, "add_prefix_space", true, where));
    ALUDEL_ASSIGN_OR_RETURN(const bool use_regex, BoolMember(config, "use_regex", true, where));
    if (prefix) steps_.push_back(std::make_unique<AddPrefixSpace>());
    if (use_regex) {
      ALUDEL_ASSIGN_OR_RETURN(Pattern words, Pattern::FromRegex(kGpt2Words, where));
      steps_.push_back(std::make_unique<Split>(std::move(words), Behavior::kIsolated, /*invert=*/false));
    }
    byte_level_ = true;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(origin, ": type is \"", type, "\", want ByteLevel, Split, Digits, Metaspace or Sequence"));
}

absl::Status PreTokenizer::AddSplit(const json& config, const std::string& where) {
  ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "pattern", "behavior", "invert"}, where));
  ALUDEL_ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromJson(FindMember(config, "pattern"), where));
  ALUDEL_ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(config, where));
  ALUDEL_ASSIGN_OR_RETURN(const bool invert, BoolMember(config, "invert", false, where));
  steps_.push_back(std::make_unique<Split>(std::move(pattern), behavior, invert));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const json& config, const std::string& where) {
  ALUDEL_RETURN_IF_ERROR(CheckMembers(
      config, {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"}, where));
  ALUDEL_ASSIGN_OR_RETURN(std::string replacement,
                          StringMember(config, "replacement", "\xe2\x96\x81", where));
  size_t first = 0;
  if (!replacement.empty()) NextCodePoint(replacement, &first);
  if (replacement.empty() || first != replacement.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": replacement is \"", replacement, "\", want one character"));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(config, "prepend_scheme", "always", where));
  ALUDEL_ASSIGN_OR_RETURN(const bool add_prefix, BoolMember(config, "add_prefix_space", true, where));
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never") {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": prepend_scheme is \"", name, "\", want always, first or never"));
  }
  if (!add_prefix) {
    if (FindMember(config, "prepend_scheme") != nullptr && scheme != PrependScheme::kNever) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": add_prefix_space is false, but prepend_scheme is \"", name, "\""));
    }
    scheme = PrependScheme::kNever;
  }
  ALUDEL_ASSIGN_OR_RETURN(const bool split, BoolMember(config, "split", true, where));
  steps_.push_back(std::make_unique<SplitAtSpaces>(std::move(replacement), scheme, split));
  return absl::OkStatus();
}

absl::Status PreTokenizer::Apply(Pieces* pieces) const {
  for (const auto& step : steps_) ALUDEL_RETURN_IF_ERROR(step->Apply(pieces));
  return absl::OkStatus();
}

}  // namespace aludel
