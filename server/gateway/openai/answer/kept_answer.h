#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/gateway/openai/answer/completion_response.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// What the gateway keeps of an answer, and its bound: of one that is not streamed all of it, of a stream what may
// become part of a tool call, and of both what a server tells of the prompts. One of which too much is kept is
// forgotten, and becomes an error. Not thread-safe.
class KeptAnswer {
 public:
  KeptAnswer(size_t choices, bool stream, size_t max_bytes)
      : choices_(choices), stream_(stream), max_bytes_(max_bytes) {}

  // To an answer that is not streamed.
  void Add(size_t choice, const ChoiceDelta& delta);
  void AddPromptLogprobs(size_t choice, const std::string& json);
  void SetEnd(size_t choice, const ChoiceEnd& end) { choices_[choice].end = end; }
  // The whole answer, once.
  std::vector<WholeChoice> Take() { return std::move(choices_); }

  // Bytes kept beside it, so many more or fewer than before.
  void Hold(int64_t change) { held_bytes_ += change; }
  // Of max_bytes, beside the whole answer's.
  size_t room() const { return max_bytes_ - std::min(bytes_, max_bytes_); }
  // Looks at what is kept, and `writer_bytes` of the writer's; false where that is too much for the first time.
  // `tokens`: of the answer, for the error.
  bool Check(size_t writer_bytes, int64_t tokens);
  const std::optional<ApiError>& too_long() const { return too_long_; }

  // The answer begins anew; what Hold was told of stays.
  void Restart();

 private:
  std::vector<WholeChoice> choices_;
  const bool stream_;
  const size_t max_bytes_;
  size_t bytes_ = 0;        // of choices_
  int64_t held_bytes_ = 0;  // beside them
  std::optional<ApiError> too_long_;
};

}  // namespace aludel
