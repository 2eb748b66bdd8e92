#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/adapters/module_pattern.h"

#include <pcre2.h>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr size_t kMaxPatternBytes = 4u << 10;
constexpr size_t kMaxCompiledBytes = 64u << 10;
// A pattern that PEFT wrote takes some hundred steps on a name; these stop one that was made to hang, or to fill
// memory: every group widens what each step keeps.
constexpr uint32_t kMatchLimit = 10'000;
constexpr uint32_t kHeapLimitKib = 16 << 10;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return absl::StrCat("PCRE2 error ", code);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

void ModulePattern::CodeDeleter::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

absl::StatusOr<ModulePattern> ModulePattern::Compile(absl::string_view pattern, absl::string_view origin) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": regular expression of ", pattern.size(),
                                                   " bytes, want 1 to ", kMaxPatternBytes));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": regular expression \"", pattern,
                                                   "\": ", ErrorText(error), " at byte ", offset));
  }
  ModulePattern result;
  result.code_.reset(code);
  size_t compiled = 0;
  pcre2_pattern_info(code, PCRE2_INFO_SIZE, &compiled);
  if (compiled > kMaxCompiledBytes) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": a regular expression compiles to ", compiled,
                                                   " bytes, want at most ", kMaxCompiledBytes));
  }
  result.text_ = std::string(pattern);
  result.origin_ = std::string(origin);
  return result;
}

absl::StatusOr<bool> ModulePattern::Matches(absl::string_view module) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (data == nullptr || context == nullptr)
    return absl::ResourceExhaustedError("no memory to match a regex");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const int rc =
      pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(module.data()),
                  module.size(), 0, 0, data.get(), context.get());
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc >= 0) return true;  // 0: the pattern has groups, of which no place was asked for
  return absl::ResourceExhaustedError(
      absl::StrCat(origin_, ": regular expression \"", text_, "\" on \"", module, "\": ", ErrorText(rc)));
}

}  // namespace aludel
