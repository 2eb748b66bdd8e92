#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/gateway/openai/tools/tool_call.h"
#include "server/gateway/openai/tools/tool_dialect.h"

namespace aludel {

// Finds the tool calls in a model's text as it comes, wherever its pieces break. A call leaves in one piece,
// when it is whole; text that may be the beginning of one waits. What looks like a call but is none (no JSON,
// a function that was not offered) stays text: nothing of an answer is lost. Where a call is required, a call
// that was cut off leaves with the arguments so far, or not at all if its name is cut. Linear in the text, however small
// its pieces; what it holds is its caller's to bound. Not thread-safe.
class ToolCallParser {
 public:
  struct Options {
    ToolDialect dialect = ToolDialect::kNone;
    std::vector<std::string> names;  // of the functions that may be called
    bool required = false;           // the text is a call from its first character on
    bool bare = false;               // a call may come without its marker: the answer is one, or of a format
    size_t max_calls = 128;          // calls beyond are dropped
  };
  struct Output {
    std::string text;
    std::vector<ToolCall> calls;
  };

  explicit ToolCallParser(Options options) : options_(std::move(options)) {}

  Output Push(absl::string_view text);
  // The text is over.
  Output Finish();
  size_t calls() const { return calls_; }             // that were whole
  size_t held_bytes() const { return held_.size(); }  // of text that may be part of a call

 private:
  // Where a call is the whole answer, its first character decides.
  void PushWhole(char first, Output* output);
  void PushHermes(Output* output);
  void EmitText(absl::string_view text, Output* output);
  // Adds the calls that `text` holds, one or several JSON values; false where it holds anything else.
  bool TakeCalls(absl::string_view text, Output* output);

  Options options_;
  std::string held_;
  size_t searched_ = 0;       // bytes of held_ that need no second look
  bool inside_ = false;       // held_ begins behind an opening marker, or with a call
  bool plain_ = false;        // Llama: the answer turned out to be text
  bool behind_call_ = false;  // nothing but white space has come since the last call
  size_t calls_ = 0;
};

}  // namespace aludel
