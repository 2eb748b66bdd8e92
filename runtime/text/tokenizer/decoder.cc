#include "runtime/text/tokenizer/decoder.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/byte_level.h"
#include "runtime/text/tokenizer/nesting.h"
#include "runtime/text/tokenizer/pattern.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr absl::string_view kReplacementCharacter = "\xef\xbf\xbd";

class ByteLevel : public Decoder::Step {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::string text, bytes;
    for (const std::string& token : *tokens) text += ByteLevelBytes(token, &bytes) ? bytes : token;
    *tokens = {ReplaceInvalidUtf8(text)};
  }
};

// The byte that "<0xNN>" stands for.
std::optional<char> SpelledByte(const std::string& token) {
  uint32_t byte = 0;
  if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>' ||
      !absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
    return std::nullopt;
  }
  return static_cast<char>(byte);
}

// <0xNN> tokens become characters; a run of them that is not UTF-8 becomes one U+FFFD per byte.
class ByteFallback : public Decoder::Step {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::vector<std::string> result;
    std::string run;
    const auto end_run = [&] {
      if (run.empty()) return;
      if (FirstInvalidUtf8(run) == run.size()) {
        result.push_back(run);
      } else {
        for (size_t i = 0; i < run.size(); ++i) result.emplace_back(kReplacementCharacter);
      }
      run.clear();
    };
    for (std::string& token : *tokens) {
      if (const std::optional<char> byte = SpelledByte(token)) {
        run.push_back(*byte);
        continue;
      }
      end_run();
      result.push_back(std::move(token));
    }
    end_run();
    *tokens = std::move(result);
  }
};

class Fuse : public Decoder::Step {
 public:
  void Apply(std::vector<std::string>* tokens) const override { *tokens = {absl::StrJoin(*tokens, "")}; }
};

class Metaspace : public Decoder::Step {
 public:
  Metaspace(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      std::string& token = (*tokens)[i];
      const absl::string_view with = i == 0 && prepended_ ? "" : " ";
      std::string result;
      size_t copied = 0;
      for (size_t at = token.find(replacement_); at != std::string::npos;
           at = token.find(replacement_, copied)) {
        absl::StrAppend(&result, token.substr(copied, at - copied), with);
        copied = at + replacement_.size();
      }
      token = absl::StrCat(result, token.substr(copied));
    }
  }

 private:
  std::string replacement_;
  bool prepended_;
};

class ReplaceInTokens : public Decoder::Step {
 public:
  ReplaceInTokens(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      std::string result;
      size_t copied = 0;
      const absl::Status searched = pattern_.ForEach(token, [&](TextRange match) {
        result.append(token, copied, match.begin - copied).append(content_);
        copied = match.end;
      });
      // A match that exceeds its bound leaves the token as it is: Decode has no way to fail.
      if (!searched.ok()) continue;
      token = result.append(token, copied, std::string::npos);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Removes up to `start` leading and `stop` trailing characters `content` of every token.
class StripTokens : public Decoder::Step {
 public:
  StripTokens(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Apply(std::vector<std::string>* tokens) const override {
    const size_t width = content_.size();
    for (std::string& token : *tokens) {
      size_t begin = 0;
      for (int64_t i = 0; i < start_ && token.compare(begin, width, content_) == 0; ++i) begin += width;
      size_t end = token.size();
      for (int64_t i = 0;
           i < stop_ && end >= begin + width && token.compare(end - width, width, content_) == 0; ++i) {
        end -= width;
      }
      token = token.substr(begin, end - begin);
    }
  }

 private:
  std::string content_;
  int64_t start_;
  int64_t stop_;
};

absl::StatusOr<std::string> OneCharacter(const json& config, const char* name, const std::string& fallback,
                                         const std::string& where) {
  ALUDEL_ASSIGN_OR_RETURN(std::string value, StringMember(config, name, fallback, where));
  size_t end = 0;
  if (!value.empty()) NextCodePoint(value, &end);
  if (value.empty() || end != value.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", name, " is \"", value, "\", want one character"));
  }
  return value;
}

}  // namespace

absl::StatusOr<Decoder> Decoder::FromJson(const json* config, const std::string& origin) {
  Decoder result;
  if (config == nullptr || config->is_null()) return result;
  result.joins_with_space_ = false;
  ALUDEL_RETURN_IF_ERROR(result.Add(*config, origin, 0));
  return result;
}

absl::Status Decoder::Add(const json& config, const std::string& origin, int depth) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string type, StringMember(config, "type", "", origin));
  const std::string where = absl::StrCat(origin, ": ", type);
  if (type == "Sequence" && depth < kMaxSequenceNesting) {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "decoders"}, where));
    const json* list = FindMember(config, "decoders");
    if (list == nullptr || !list->is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": decoders is no array"));
    }
    for (const json& step : *list) ALUDEL_RETURN_IF_ERROR(Add(step, origin, depth + 1));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    ALUDEL_RETURN_IF_ERROR(
        CheckMembers(config, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where));
    steps_.push_back(std::make_unique<ByteLevel>());
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type"}, where));
    steps_.push_back(std::make_unique<ByteFallback>());
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type"}, where));
    steps_.push_back(std::make_unique<Fuse>());
  } else if (type == "Metaspace") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(
        config, {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"}, where));
    ALUDEL_ASSIGN_OR_RETURN(std::string replacement,
                            OneCharacter(config, "replacement", "\xe2\x96\x81", where));
    ALUDEL_ASSIGN_OR_RETURN(const std::string scheme,
                            StringMember(config, "prepend_scheme", "always", where));
    ALUDEL_ASSIGN_OR_RETURN(const bool prefix, BoolMember(config, "add_prefix_space", true, where));
    steps_.push_back(std::make_unique<Metaspace>(std::move(replacement), scheme != "never" && prefix));
  } else if (type == "Replace") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "pattern", "content"}, where));
    ALUDEL_ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromJson(FindMember(config, "pattern"), where));
    ALUDEL_ASSIGN_OR_RETURN(std::string content, StringMember(config, "content", "", where));
    steps_.push_back(std::make_unique<ReplaceInTokens>(std::move(pattern), std::move(content)));
  } else if (type == "Strip") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "content", "start", "stop"}, where));
    ALUDEL_ASSIGN_OR_RETURN(std::string content, OneCharacter(config, "content", " ", where));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t start, IntMember(config, "start", 0, 0, 1 << 20, where));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t stop, IntMember(config, "stop", 0, 0, 1 << 20, where));
    steps_.push_back(std::make_unique<StripTokens>(std::move(content), start, stop));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": type is \"", type,
                     "\", want ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or Sequence"));
  }
  return absl::OkStatus();
}

std::string Decoder::Decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) step->Apply(&tokens);
  return absl::StrJoin(tokens, joins_with_space_ ? " " : "");
}

std::string Decoder::TokenBytes(const std::string& token) const {
  if (byte_level_) {
    std::string bytes;
    return ByteLevelBytes(token, &bytes) ? bytes : token;
  }
  if (byte_fallback_) {
    if (const std::optional<char> byte = SpelledByte(token)) return std::string(1, *byte);
  }
  // Behind another token, because decoders treat the start of a text in their own way.
  const std::string context = "x";
  return Decode({context, token}).substr(context.size());
}

}  // namespace aludel
