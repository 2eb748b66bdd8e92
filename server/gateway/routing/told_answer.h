#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aludel/v1/handoff.pb.h"

namespace aludel {

// What of one answer was told to its client, and how much of that the server that computes it now has repeated. Where a
// server was lost in the midst of an answer, another one computes it again, under the same seed: what was told must come
// again as it was, and only what follows is news. Pure; not thread-safe.
class ToldAnswer {
 public:
  enum class Verdict {
    kNews,      // to be told, and noted as told
    kRepeated,  // was told
    kDiverged,  // the server gives another answer than the one that was begun
  };

  explicit ToldAnswer(size_t choices) : choices_(choices) {}

  // Until something of the answer is told, another server may begin it in its own way.
  void Started(const v1::Started& started) { started_ = started; }
  const v1::Started& started() const { return started_; }
  bool SamePlan(const v1::Started& started) const;
  // Has the answer computed over a cache like that of started().
  void AskForPlan(v1::GenerateRequest* request) const;

  // A choice that was not asked for is news: the observer's to refuse.
  Verdict Hear(const v1::Token& token);
  Verdict Hear(const v1::Finished& finished);

  // Nothing was told after all.
  void Forget();
  // Another server begins to compute it.
  void Repeat();
  // The server has not come to where the client is.
  bool repeating() const;
  // Nothing more can come.
  bool whole() const;

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    size_t repeated = 0;
    bool finished = false;
  };

  v1::Started started_;
  std::vector<Choice> choices_;
};

}  // namespace aludel
