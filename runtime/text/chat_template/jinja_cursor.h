#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_template/jinja_lexer.h"

namespace aludel {

// A place among a template's tokens, which end with kEnd. The parsers of statements and of expressions share
// one; what they fail with names the line and the token that stands here. Not thread-safe.
class JinjaCursor {
 public:
  explicit JinjaCursor(std::vector<JinjaToken> tokens);

  const JinjaToken& Peek(size_t ahead = 0) const;
  const JinjaToken& Next();
  void Skip() { ++at_; }

  bool At(JinjaToken::Kind kind) const { return Peek().kind == kind; }
  bool AtName(absl::string_view name, size_t ahead = 0) const;
  bool AtOperator(absl::string_view text, size_t ahead = 0) const;
  bool SkipName(absl::string_view name);
  bool SkipOperator(absl::string_view text);

  absl::Status Expect(JinjaToken::Kind kind, absl::string_view name);
  absl::Status ExpectOperator(absl::string_view text);
  absl::StatusOr<std::string> ExpectName();
  absl::Status Fail(absl::string_view expected) const;

  // How deep the parsers have called themselves: what they parse comes from a file, and the stack is finite.
  // `what` nests too deep at more than `most`.
  absl::Status Enter(int most, absl::string_view what);
  void Leave() { --depth_; }

 private:
  std::vector<JinjaToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace aludel
