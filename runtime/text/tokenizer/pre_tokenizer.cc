#include "runtime/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/pattern.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr int kMaxNesting = 4;

// GPT-2's words: contractions, then letters, numbers, other characters, each with one leading space, then
// white space without the space that belongs to the next word.
constexpr char kGpt2Words[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What happens to the text that a pattern matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Section {
  TextRange range;
  bool is_match = false;
};

// The matches of one piece and what lies between them, in order.
void FillGaps(const std::vector<TextRange>& matches, size_t size, bool invert,
              std::vector<Section>* sections) {
  sections->clear();
  size_t covered = 0;
  for (const TextRange& match : matches) {
    if (match.begin > covered) sections->push_back({{covered, match.begin}, invert});
    sections->push_back({match, !invert});
    covered = match.end;
  }
  if (covered < size) sections->push_back({{covered, size}, invert});
}

// Joins sections as `behavior` says. An empty match still ends the section before it.
void Join(Behavior behavior, std::vector<Section>* sections) {
  std::vector<Section>& all = *sections;
  std::vector<Section> joined;
  bool previous_match = false;
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      all.erase(std::remove_if(all.begin(), all.end(), [](const Section& s) { return s.is_match; }),
                all.end());
      return;
    case Behavior::kContiguous:
      for (const Section& section : all) {
        if (!joined.empty() && section.is_match == previous_match) {
          joined.back().range.end = section.range.end;
        } else {
          joined.push_back(section);
        }
        previous_match = section.is_match;
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Section& section : all) {
        if (!joined.empty() && section.is_match && !previous_match) {
          joined.back().range.end = section.range.end;
        } else {
          joined.push_back(section);
        }
        previous_match = section.is_match;
      }
      break;
    case Behavior::kMergedWithNext:
      for (auto section = all.rbegin(); section != all.rend(); ++section) {
        if (!joined.empty() && section->is_match && !previous_match) {
          joined.back().range.begin = section->range.begin;
        } else {
          joined.push_back(*section);
        }
        previous_match = section->is_match;
      }
      std::reverse(joined.begin(), joined.end());
      break;
  }
  all = std::move(joined);
}

// Cuts every piece at what `find(text, &matches)` finds in it.
template <typename Find>
absl::Status Cut(const Find& find, Behavior behavior, bool invert, Pieces* pieces) {
  const absl::string_view text = pieces->text;
  std::vector<TextRange> result;
  std::vector<TextRange> matches;
  std::vector<Section> sections;
  for (const TextRange& piece : pieces->ranges) {
    ALUDEL_RETURN_IF_ERROR(find(text.substr(piece.begin, piece.size()), &matches));
    FillGaps(matches, piece.size(), invert, &sections);
    Join(behavior, &sections);
    for (const Section& section : sections) {
      if (section.range.size() == 0) continue;
      result.push_back({piece.begin + section.range.begin, piece.begin + section.range.end});
    }
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
    range = {begin, text.size()};
    at_start = false;
  }
  pieces->text = std::move(text);
}

class Split : public PreTokenizer::Step {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  absl::Status Apply(Pieces* pieces) const override {
    const auto find = [&](absl::string_view text, std::vector<TextRange>* matches) {
      return pattern_.FindAll(text, matches);
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
    const auto find = [](absl::string_view text, std::vector<TextRange>* matches) {
      matches->clear();
      for (size_t i = 0; i < text.size();) {
        const size_t begin = i;
        if (IsNumeric(NextCodePoint(text, &i))) matches->push_back({begin, i});
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

class Metaspace : public PreTokenizer::Step {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
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
    const auto find = [&](absl::string_view text, std::vector<TextRange>* matches) {
      matches->clear();
      for (size_t at = text.find(replacement_); at != absl::string_view::npos;
           at = text.find(replacement_, at + replacement_.size())) {
        matches->push_back({at, at + replacement_.size()});
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
  if (type == "Sequence" && depth < kMaxNesting) {
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
  steps_.push_back(std::make_unique<Metaspace>(std::move(replacement), scheme, split));
  return absl::OkStatus();
}

absl::Status PreTokenizer::Apply(Pieces* pieces) const {
  for (const auto& step : steps_) ALUDEL_RETURN_IF_ERROR(step->Apply(pieces));
  return absl::OkStatus();
}

}  // namespace aludel
