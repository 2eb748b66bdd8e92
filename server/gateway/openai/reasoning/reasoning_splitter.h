#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

inline constexpr absl::string_view kThinkBegin = "<think>";
inline constexpr absl::string_view kThinkEnd = "</think>";

// Tells what a model thinks, <think> ... </think> at the beginning of its text, from what it answers, wherever the text's
// pieces break. White space around both is dropped: at most kMaxSpace bytes of it before a marker, so that no more than
// these and a part of a marker ever wait. Not thread-safe.
class ReasoningSplitter {
 public:
  enum class Mode {
    kOff,       // all is the answer
    kMayBegin,  // the text may begin with <think>
    kInside,    // the prompt ends with <think>
  };
  struct Output {
    std::string reasoning;
    std::string text;
  };
  static constexpr size_t kMaxSpace = 32;

  explicit ReasoningSplitter(Mode mode);

  Output Push(absl::string_view text);
  // The text is over.
  Output Finish();
  bool inside() const { return state_ == State::kInside; }

 private:
  enum class State { kBegin, kInside, kBehind, kAnswer };

  // What can be told of held_; true where there may be more to tell.
  bool Step(Output* output);
  void EmitReasoning(absl::string_view text, Output* output);

  State state_;
  std::string held_;
  bool thought_ = false;  // something but white space
};

}  // namespace aludel
