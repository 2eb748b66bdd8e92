#include "server/gateway/openai/reasoning/reasoning_splitter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace aludel {
namespace {

// White space at the end of `text` that is not shown.
size_t SpaceAtEnd(absl::string_view text) {
  return std::min(text.size() - absl::StripTrailingAsciiWhitespace(text).size(),
                  ReasoningSplitter::kMaxSpace);
}

// How much of the end of `text` may be the beginning of kThinkEnd, or the white space before it.
size_t HeldBack(absl::string_view text) {
  size_t marker = std::min(text.size(), kThinkEnd.size() - 1);
  while (marker > 0 && !absl::EndsWith(text, kThinkEnd.substr(0, marker))) --marker;
  return marker + SpaceAtEnd(text.substr(0, text.size() - marker));
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(Mode mode)
    : state_(mode == Mode::kOff      ? State::kAnswer
             : mode == Mode::kInside ? State::kInside
                                     : State::kBegin) {}

void ReasoningSplitter::EmitReasoning(absl::string_view text, Output* output) {
  if (!thought_) text = absl::StripLeadingAsciiWhitespace(text);
  thought_ = thought_ || !text.empty();
  output->reasoning.append(text.data(), text.size());
}

bool ReasoningSplitter::Step(Output* output) {
  const absl::string_view held = held_;
  const absl::string_view begin = absl::StripLeadingAsciiWhitespace(held);
  switch (state_) {
    case State::kBegin:
      if (held.size() - begin.size() <= kMaxSpace) {
        if (absl::StartsWith(begin, kThinkBegin)) {
          held_.erase(0, held.size() - begin.size() + kThinkBegin.size());
          state_ = State::kInside;
          return true;
        }
        if (absl::StartsWith(kThinkBegin, begin)) return false;
      }
      state_ = State::kAnswer;
      return true;
    case State::kInside: {
      const size_t close = held_.find(kThinkEnd.data(), 0, kThinkEnd.size());
      if (close != std::string::npos) {
        const absl::string_view thought = held.substr(0, close);
        EmitReasoning(thought.substr(0, close - SpaceAtEnd(thought)), output);
        held_.erase(0, close + kThinkEnd.size());
        state_ = State::kBehind;
        return true;
      }
      const size_t shown = held.size() - HeldBack(held);
      EmitReasoning(held.substr(0, shown), output);
      held_.erase(0, shown);
      return false;
    }
    case State::kBehind:
      held_.erase(0, held.size() - begin.size());
      if (held_.empty()) return false;
      state_ = State::kAnswer;
      return true;
    case State::kAnswer:
      output->text += std::exchange(held_, "");
      return false;
  }
  return false;
}

ReasoningSplitter::Output ReasoningSplitter::Push(absl::string_view text) {
  Output output;
  held_.append(text.data(), text.size());
  while (Step(&output)) {
  }
  return output;
}

ReasoningSplitter::Output ReasoningSplitter::Finish() {
  Output output;
  const std::string held = std::exchange(held_, "");
  if (state_ == State::kInside) {
    EmitReasoning(absl::string_view(held).substr(0, held.size() - SpaceAtEnd(held)), &output);
  } else {
    output.text = held;
  }
  return output;
}

}  // namespace aludel
