#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/tokenizer/regex.h"

#include <pcre2.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "runtime/files/stop_scope.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

constexpr size_t kMaxPatternBytes = 64u << 10;
// A pattern of a published model backtracks a few steps per character; these stop one that was made to hang.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackStartBytes = 32u << 10;
constexpr size_t kJitStackMaxBytes = 1u << 20;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return absl::StrCat("PCRE2 error ", code);
  return reinterpret_cast<const char*>(buffer);
}

// What one thread needs to match; a JIT stack must not be shared.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

MatchState& ThreadMatchState() {
  static thread_local MatchState state;
  return state;
}

}  // namespace

void Regex::CodeDeleter::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern, absl::string_view origin) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes || FirstInvalidUtf8(pattern) != pattern.size()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": regex has ", pattern.size(),
                                                   " bytes, want 1 to ", kMaxPatternBytes, " of UTF-8"));
  }
  absl::StatusOr<std::string> translated = TranslateOniguruma(pattern);
  if (!translated.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", translated.status().message()));
  }
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) return absl::ResourceExhaustedError("no memory to compile a regex");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // In Ruby syntax ^ and $ always mean lines.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                                   options, &error, &offset, context.get());
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": regex /", pattern, "/ (as /", *translated,
                                                   "/): ", ErrorText(error), " at byte ", offset));
  }
  Regex regex;
  regex.pattern_ = std::string(pattern);
  regex.code_.reset(code);
  // Without JIT (no executable memory, another architecture) pcre2_match interprets: slower, same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

absl::Status Regex::ForEach(absl::string_view text, absl::FunctionRef<void(TextRange)> found) const {
  MatchState& state = ThreadMatchState();
  if (state.data == nullptr || state.context == nullptr || state.stack == nullptr) {
    return absl::ResourceExhaustedError("no memory to match a regex");
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data);
  std::optional<uint32_t> last_end;
  for (size_t at = 0; at <= text.size();) {
    ALUDEL_RETURN_IF_ERROR(CheckStop());
    const int rc = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("regex /", pattern_, "/ on a text of ", text.size(), " bytes: ", ErrorText(rc)));
    }
    const TextRange match = Range(bounds[0], bounds[1]);
    if (match.size() == 0 && last_end == match.end) {
      if (at >= text.size()) break;
      NextCodePoint(text, &at);
      continue;
    }
    found(match);
    last_end = match.end;
    at = match.end;
  }
  return absl::OkStatus();
}

}  // namespace aludel
