#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// A regular expression over module names ("model.layers.0.self_attn.q_proj") as PEFT writes it for Python's
// `re`, run by PCRE2 with bounded steps: what the two dialects share. Movable; one match at a time.
class ModulePattern {
 public:
  // InvalidArgument names `origin`, the pattern and what PCRE2 has against it.
  static absl::StatusOr<ModulePattern> Compile(absl::string_view pattern, absl::string_view origin);

  // Whether all of `module` matches. ResourceExhausted where that takes more than the bound on steps.
  absl::StatusOr<bool> Matches(absl::string_view module) const;

  const std::string& text() const { return text_; }

 private:
  struct CodeDeleter {
    void operator()(void* code) const;
  };

  std::string text_;
  std::string origin_;
  std::unique_ptr<void, CodeDeleter> code_;
};

}  // namespace aludel
