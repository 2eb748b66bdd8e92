#include "runtime/engine/engine_request.h"

#include <algorithm>
#include <iterator>
#include <random>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "runtime/engine/encoding_observer.h"
#include "runtime/engine/engine_options.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::Status RequestReader::CheckPrompt(const std::vector<int32_t>& prompt) const {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens >= options_.max_context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the prompt has %d tokens, this model's maximum context length is %d tokens", tokens,
                        options_.max_context));
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= vocab_) {
      return absl::InvalidArgumentError(absl::StrFormat("token id %d, the vocabulary has %d", id, vocab_));
    }
  }
  return absl::OkStatus();
}

absl::Status RequestReader::CheckSampling(const SamplingParams& sampling) const {
  if (sampling.choices < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("%d choices asked for, want 1", sampling.choices));
  }
  if (sampling.choices > options_.max_num_seqs) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%d choices asked for, this engine runs at most %d at once", sampling.choices,
                        options_.max_num_seqs));
  }
  const auto check = [this](const char* field, int32_t id) {
    if (id >= 0 && id < vocab_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds token id %d, the vocabulary has %d", field, id, vocab_));
  };
  for (const LogitBias& bias : sampling.logit_bias) ALUDEL_RETURN_IF_ERROR(check("logit_bias", bias.id));
  for (const int32_t id : sampling.stop_ids) ALUDEL_RETURN_IF_ERROR(check("stop_token_ids", id));
  for (const int32_t id : sampling.allowed_ids) ALUDEL_RETURN_IF_ERROR(check("allowed_token_ids", id));
  if (const auto& thinking = sampling.thinking) {
    if (thinking->begin != ThinkingLimit::kNoBegin)
      ALUDEL_RETURN_IF_ERROR(check("thinking", thinking->begin));
    ALUDEL_RETURN_IF_ERROR(check("thinking", thinking->end));
  }
  for (const std::vector<int32_t>& run : sampling.bad_words) {
    if (run.empty()) return absl::InvalidArgumentError("bad_words holds a word of no token");
    for (const int32_t id : run) ALUDEL_RETURN_IF_ERROR(check("bad_words", id));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TokenRuleSet>> RequestReader::MakeRules(
    bool constrained, const SamplingParams& sampling) const {
  auto rules = std::make_shared<TokenRuleSet>();
  rules->never = sampling.bad_words;
  rules->thinking = sampling.thinking;
  if (sampling.min_tokens > 0) {
    rules->late_from = sampling.min_tokens;
    const auto ends = [this](int32_t id) { return absl::c_linear_search(eos_ids_, id); };
    if (!sampling.ignore_eos) rules->late.assign(eos_ids_.begin(), eos_ids_.end());
    absl::c_copy(sampling.stop_ids, std::back_inserter(rules->late));
    // Where a grammar ends, its answer does, however short it is.
    if (constrained) std::erase_if(rules->late, ends);
  }
  if (!sampling.allowed_ids.empty()) {
    const auto held_back = [&](int32_t id) { return absl::c_linear_search(rules->late, id); };
    if (absl::c_all_of(sampling.allowed_ids, held_back)) {
      return absl::InvalidArgumentError("min_tokens holds back every token of allowed_token_ids");
    }
    rules->allowed.resize((vocab_ + 63) / 64);
    for (const int32_t id : sampling.allowed_ids) rules->allowed[id / 64] |= uint64_t{1} << (id % 64);
  }
  if (rules->allowed.empty() && rules->never.empty() && rules->late.empty() && !rules->thinking)
    return nullptr;
  return rules;
}

absl::StatusOr<std::unique_ptr<Sequence>> RequestReader::ReadGenerate(
    GenerateSpec spec, std::shared_ptr<SequenceListener> listener) const {
  ALUDEL_RETURN_IF_ERROR(CheckPrompt(spec.prompt));
  ALUDEL_RETURN_IF_ERROR(CheckSampling(spec.sampling));
  if (std::abs(spec.priority) > kMaxPriority) {
    return absl::InvalidArgumentError(
        absl::StrFormat("priority is %d, want %d to %d", spec.priority, -kMaxPriority, kMaxPriority));
  }
  const int64_t room = options_.max_context - static_cast<int64_t>(spec.prompt.size());
  const int64_t wanted = spec.sampling.max_tokens > 0 ? std::min(spec.sampling.max_tokens, room) : room;
  const int64_t max_completion = spec.sampling.no_answer ? 0 : wanted;
  if (spec.sampling.prompt_logprobs.has_value() && spec.codec != nullptr) {
    return absl::InvalidArgumentError("log-probabilities of a prompt whose cache comes from a codec");
  }
  auto group = std::make_shared<ChoiceGroup>();
  std::random_device random;
  group->seed = uint64_t{random()} << 32 | random();
  ALUDEL_ASSIGN_OR_RETURN(spec.sampling.rules, MakeRules(spec.constraint != nullptr, spec.sampling));
  group->sampling = std::move(spec.sampling);
  group->constraint = std::move(spec.constraint);
  group->open = group->sampling.choices;
  group->unforked = group->open - 1;
  auto sequence = std::make_unique<Sequence>(std::move(spec.prompt), max_completion, std::move(listener),
                                             std::move(group), /*choice=*/0, tokenizer_);
  if (const auto& top = sequence->group->sampling.prompt_logprobs) {
    sequence->scorer = std::make_unique<PromptScorer>(sequence->tokens, vocab_, *top);
    sequence->queried = true;  // the prefix cache is not asked
  }
  if (spec.codec != nullptr) sequence->format = &spec.codec->spec();
  sequence->codec_owner = std::move(spec.codec_owner);
  sequence->priority = spec.priority;
  sequence->cache_salt = std::move(spec.cache_salt);
  sequence->keep_prefix = spec.keep_prefix;
  sequence->adapter = std::move(spec.adapter);
  if (sequence->adapter != nullptr && spec.adapter_reads_only) {
    if (sequence->adapter->updates_cache()) {
      return absl::InvalidArgumentError("an adapter that only reads the cache updates keys or values");
    }
    sequence->adapter_reads_only = true;
  } else if (sequence->adapter != nullptr) {
    sequence->adapter_begin = spec.adapter_begin;
  }
  if (spec.codec != nullptr && spec.handed_over_tokens == 0) sequence->cached_wanted = spec.cached_tokens;
  if (spec.codec != nullptr && spec.handed_over_tokens > 0) {
    const int64_t head = spec.codec->spec().recomputed_head_tokens;
    if (spec.handed_over_tokens <= head || spec.handed_over_tokens >= sequence->prompt_tokens) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tokens [%d, %d) of a prompt of %d handed over, want an end of %d to %d", head,
          spec.handed_over_tokens, sequence->prompt_tokens, head + 1, sequence->prompt_tokens - 1));
    }
    if (sequence->adapter_begin > 0 && spec.handed_over_tokens > sequence->adapter_begin) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%d tokens of the model handed over, want at most the %d before its adapter acts",
                          spec.handed_over_tokens, sequence->adapter_begin));
    }
    if (spec.codec->spec().base_planes > 0 && sequence->group->open > 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%d choices over a cache of format %s, which is refined for one alone",
                          sequence->group->open, spec.codec->spec().name));
    }
    ALUDEL_ASSIGN_OR_RETURN(auto decoder, spec.codec->NewDecoder());
    sequence->receiving.emplace(
        Receiving{spec.codec, std::move(decoder),
                  FrameLedger(spec.codec->spec().shipped_layers, static_cast<uint32_t>(head),
                              static_cast<uint32_t>(spec.handed_over_tokens))});
    sequence->handed_over = spec.handed_over_tokens;
  }
  sequence->prompt_end = sequence->prompt_tokens;
  sequence->deadline = spec.deadline;
  return sequence;
}

absl::StatusOr<std::unique_ptr<Sequence>> RequestReader::ReadPrefill(
    PrefillSpec spec, std::shared_ptr<SequenceListener> listener) const {
  ALUDEL_RETURN_IF_ERROR(CheckPrompt(spec.prompt));
  auto sequence =
      std::make_unique<Sequence>(std::move(spec.prompt), /*max_completion=*/0, std::move(listener),
                                 std::make_shared<ChoiceGroup>(), /*choice=*/0, tokenizer_);
  if (spec.token_end <= 0 || spec.token_end > sequence->prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("token_end is %d, want 1 to the prompt's %d tokens",
                                                      spec.token_end, sequence->prompt_tokens));
  }
  sequence->codec_owner = std::move(spec.codec_owner);
  ALUDEL_ASSIGN_OR_RETURN(auto encoder, spec.codec->NewEncoder());
  sequence->encoder = std::make_unique<EncodingObserver>(
      std::max(spec.encode_begin, spec.codec->spec().recomputed_head_tokens), std::move(encoder), spec.sink);
  sequence->prompt_end = spec.token_end;
  sequence->has_room = std::move(spec.has_room);
  sequence->step_tokens = spec.step_tokens;
  sequence->cache_salt = std::move(spec.cache_salt);
  sequence->keep_prefix = spec.keep_prefix;
  sequence->deadline = spec.deadline;
  return sequence;
}

}  // namespace aludel
