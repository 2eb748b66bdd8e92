#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/sample.h"
#include "runtime/engine/sampling/random_stream.h"
#include "runtime/engine/sampling/token_counts.h"
#include "runtime/engine/sampling/token_rules.h"

namespace aludel {

struct LogitBias {
  int32_t id = 0;
  float bias = 0;  // added to the token's logit
};

struct SamplingParams {
  double temperature = 0.0;         // 0: greedy
  int top_k = 0;                    // 0: off
  double top_p = 1.0;               // 1: off
  double min_p = 0.0;               // 0: off; least probability as a share of the likeliest token's
  double repetition_penalty = 1.0;  // 1: off; of every token the sequence holds, prompt included
  double presence_penalty = 0.0;    // of every token generated before
  double frequency_penalty = 0.0;   // times how often it was generated before
  std::vector<LogitBias> logit_bias;

  std::optional<uint64_t> seed;  // unset: random
  int64_t max_tokens = 0;        // 0: as many as the context holds
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;     // tokens that end the answer
  bool include_stop = false;         // what stopped an answer is the end of its text
  int64_t min_tokens = 0;            // before them no end token, stop token or stop string ends the answer
  std::vector<int32_t> allowed_ids;  // no other tokens; empty: all
  std::vector<std::vector<int32_t>> bad_words;  // runs of tokens that never appear whole
  std::optional<ThinkingLimit> thinking;
  std::shared_ptr<const TokenRuleSet> rules;  // what the last four rule out, made by the engine
  bool ignore_eos = false;
  int choices = 1;                  // independent answers to one prompt
  std::vector<int32_t> forced;      // the answer's first tokens, whatever the logits say; ids are in range
  std::optional<int> top_logprobs;  // set: every token comes with its log-probability and this many others
  // Set: the prompt's tokens, too, but the first (SequenceListener::OnPromptScores). All of the prompt is computed then:
  // no codec, and nothing of the prefix cache.
  std::optional<int> prompt_logprobs;
  bool no_answer = false;  // the request ends with its prompt, by length
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural
};

// Working memory that all samplers of one thread share, so that a token allocates nothing.
struct SamplerScratch {
  explicit SamplerScratch(size_t vocab) : row(vocab) {}
  std::vector<float> row;
};

// Chooses tokens for one choice of one request. In this order: logit_bias; repetition penalty (Keskar et al.
// 2019: positive logits divided, others multiplied), frequency and presence penalty; the mask of tokens that
// a constraint allows; the request's own rules (token_rules.h); then what kernels/sample.h defines: temperature and, as transformers orders them,
// top-k, the smallest set whose probability reaches top-p, and min-p. The same seed, choice and logits give
// the same tokens. Not thread-safe.
class Sampler {
 public:
  // `seed` replaces an unset params.seed. `prompt` is only read here.
  Sampler(const SamplingParams& params, uint64_t seed, uint32_t choice, absl::Span<const int32_t> prompt,
          int64_t max_completion);

  // The next token, accepted. logits [vocab]; ids in `allowed` (a bit per token; empty: all) must include
  // one. kNoToken, and nothing is accepted, where logits are no numbers or the rules leave no token.
  int32_t Sample(absl::Span<const float> logits, absl::Span<const uint64_t> allowed, SamplerScratch* scratch);

  // How the next token is drawn if nothing restricts it, where that takes the model's logits as they are:
  // a caller that has them can draw the token and pass it to Accept.
  std::optional<RowSampling> PlainDraw() const;
  // `token` is the next one; penalties count it from now on.
  void Accept(int32_t token);

 private:
  RowSampling NextDraw() const;
  absl::Span<const float> Adjust(absl::Span<const float> logits, absl::Span<const uint64_t> allowed,
                                 SamplerScratch* scratch) const;

  RowSampling sampling_;
  double repetition_penalty_;
  double presence_penalty_;
  double frequency_penalty_;
  std::vector<LogitBias> bias_;
  std::optional<TokenCounts> counts_;  // only where a penalty is asked for
  TokenRules rules_;
  RandomStream random_;
  uint64_t position_ = 0;
};

// Whether a row is what a model may give: numbers, or minus infinity for what it rules out, but not for all.
bool AreLogits(absl::Span<const float> row);

// Log-probabilities as the model gave them, before bias, penalties, mask and temperature: `chosen`'s first,
// then those of the `top` likeliest tokens, in falling order.
std::vector<TokenLogprob> Logprobs(absl::Span<const float> logits, int32_t chosen, int top);

}  // namespace aludel
