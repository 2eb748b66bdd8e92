#include "runtime/text/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/nesting.h"
#include "runtime/text/tokenizer/pattern.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using nlohmann::json;

class UnicodeForm : public Normalizer::Step {
 public:
  explicit UnicodeForm(const icu::Normalizer2* form) : form_(form) {}

  absl::Status Apply(std::string* text) const override {
    UErrorCode error = U_ZERO_ERROR;
    const icu::StringPiece input(text->data(), static_cast<int32_t>(text->size()));
    if (form_->isNormalizedUTF8(input, error) && U_SUCCESS(error)) return absl::OkStatus();
    std::string result;
    icu::StringByteSink<std::string> sink(&result);
    error = U_ZERO_ERROR;
    form_->normalizeUTF8(0, input, sink, nullptr, error);
    if (U_FAILURE(error)) return absl::InternalError(absl::StrCat("ICU normalization: ", u_errorName(error)));
    *text = std::move(result);
    return absl::OkStatus();
  }

 private:
  const icu::Normalizer2* form_;  // a singleton of ICU
};

// Character by character, without context, as HuggingFace does: a final sigma stays a plain sigma.
class Lowercase : public Normalizer::Step {
 public:
  absl::Status Apply(std::string* text) const override {
    constexpr char32_t kDottedI = 0x130;  // the one letter whose lower case is two code points
    std::string result;
    for (size_t i = 0; i < text->size();) {
      const char32_t character = NextCodePoint(*text, &i);
      if (character == kDottedI) {
        result += "i\xcc\x87";
      } else {
        AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))), &result);
      }
    }
    *text = std::move(result);
    return absl::OkStatus();
  }
};

class Prepend : public Normalizer::Step {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(std::string* text) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer::Step {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(std::string* text) const override {
    std::string result;
    size_t copied = 0;
    ALUDEL_RETURN_IF_ERROR(pattern_.ForEach(*text, [&](TextRange match) {
      result.append(*text, copied, match.begin - copied).append(content_);
      copied = match.end;
    }));
    *text = std::move(result.append(*text, copied, std::string::npos));
    return absl::OkStatus();
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Strip : public Normalizer::Step {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(std::string* text) const override {
    size_t begin = 0;
    size_t end = text->size();
    for (size_t next = begin; left_ && next < end; begin = next) {
      if (!IsWhiteSpace(NextCodePoint(*text, &next))) break;
    }
    for (size_t next = end; right_ && next > begin; end = next) {
      if (!IsWhiteSpace(PreviousCodePoint(*text, &next))) break;
    }
    *text = text->substr(begin, end - begin);
    return absl::OkStatus();
  }

 private:
  bool left_;
  bool right_;
};

const icu::Normalizer2* FindForm(const std::string& type) {
  UErrorCode error = U_ZERO_ERROR;
  if (type == "NFC") return icu::Normalizer2::getNFCInstance(error);
  if (type == "NFD") return icu::Normalizer2::getNFDInstance(error);
  if (type == "NFKC") return icu::Normalizer2::getNFKCInstance(error);
  if (type == "NFKD") return icu::Normalizer2::getNFKDInstance(error);
  return nullptr;
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::FromJson(const json* config, const std::string& origin) {
  Normalizer result;
  if (config == nullptr || config->is_null()) return result;
  ALUDEL_RETURN_IF_ERROR(result.Add(*config, origin, 0));
  return result;
}

absl::Status Normalizer::Add(const json& config, const std::string& origin, int depth) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string type, StringMember(config, "type", "", origin));
  const std::string where = absl::StrCat(origin, ": ", type);
  if (type == "Sequence" && depth < kMaxSequenceNesting) {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "normalizers"}, where));
    const json* list = FindMember(config, "normalizers");
    if (list == nullptr || !list->is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": normalizers is no array"));
    }
    for (const json& step : *list) ALUDEL_RETURN_IF_ERROR(Add(step, origin, depth + 1));
    return absl::OkStatus();
  }
  if (const icu::Normalizer2* form = FindForm(type); form != nullptr) {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type"}, where));
    steps_.push_back(std::make_unique<UnicodeForm>(form));
  } else if (type == "Lowercase") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type"}, where));
    steps_.push_back(std::make_unique<Lowercase>());
  } else if (type == "Prepend") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "prepend"}, where));
    ALUDEL_ASSIGN_OR_RETURN(std::string prefix, StringMember(config, "prepend", "", where));
    steps_.push_back(std::make_unique<Prepend>(std::move(prefix)));
  } else if (type == "Replace") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "pattern", "content"}, where));
    ALUDEL_ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromJson(FindMember(config, "pattern"), where));
    ALUDEL_ASSIGN_OR_RETURN(std::string content, StringMember(config, "content", "", where));
    steps_.push_back(std::make_unique<Replace>(std::move(pattern), std::move(content)));
  } else if (type == "Strip") {
    ALUDEL_RETURN_IF_ERROR(CheckMembers(config, {"type", "strip_left", "strip_right"}, where));
    ALUDEL_ASSIGN_OR_RETURN(const bool left, BoolMember(config, "strip_left", true, where));
    ALUDEL_ASSIGN_OR_RETURN(const bool right, BoolMember(config, "strip_right", true, where));
    steps_.push_back(std::make_unique<Strip>(left, right));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": type is \"", type,
                     "\", want NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or Sequence"));
  }
  return absl::OkStatus();
}

absl::Status Normalizer::Apply(std::string* text) const {
  for (const auto& step : steps_) ALUDEL_RETURN_IF_ERROR(step->Apply(text));
  return absl::OkStatus();
}

}  // namespace aludel
