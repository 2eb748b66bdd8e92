#include "runtime/calibrate/handoff_probe.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/codec/handoff.h"
#include "runtime/evaluate/score.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr uint64_t kBootstrapSeed = 1;

absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const Transformer& model, int64_t tokens) {
  constexpr int kBlockTokens = 16;
  const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  return BlockPool::Create(model.device(), model.MakeKvLayout(blocks, kBlockTokens, DType::kBf16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoffProbe>> HandoffProbe::Create(
    Transformer& producer, Transformer& consumer, absl::Span<const std::vector<int32_t>> prompts,
    int max_answer_tokens, const CalibrationProgress& progress) {
  std::unique_ptr<HandoffProbe> probe(new HandoffProbe(producer, consumer));
  size_t longest = 2;
  for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
  const int64_t room = static_cast<int64_t>(longest) + max_answer_tokens;
  ALUDEL_ASSIGN_OR_RETURN(probe->producer_pool_, MakePool(producer, room));
  ALUDEL_ASSIGN_OR_RETURN(probe->consumer_pool_, MakePool(consumer, room));
  for (const std::vector<int32_t>& prompt : prompts) {
    if (!progress("held-out answers", static_cast<int64_t>(probe->trials_.size()),
                  static_cast<int64_t>(prompts.size()))) {
      return absl::CancelledError("calibration was interrupted");
    }
    const int64_t tokens = static_cast<int64_t>(prompt.size()) - 1;
    BlockTable table;
    ALUDEL_RETURN_IF_ERROR(table.Grow(*probe->consumer_pool_, tokens + 1 + max_answer_tokens));
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(consumer, *probe->consumer_pool_, table.ids(), prompt, 0, tokens, nullptr, nullptr));
    ALUDEL_ASSIGN_OR_RETURN(Answer oracle, AnswerGreedily(consumer, *probe->consumer_pool_, table.ids(),
                                                          prompt, max_answer_tokens));
    probe->trials_.push_back({prompt, std::move(oracle)});
  }
  progress("held-out answers", static_cast<int64_t>(prompts.size()), static_cast<int64_t>(prompts.size()));
  return probe;
}

absl::StatusOr<HandoffProbe::Result> HandoffProbe::Measure(
    const EncoderFactory& encoder, const DecoderFactory& decoder,
    const std::function<absl::Status(const WireFrame&)>& visit) {
  std::vector<double> kl_sums, answer_lengths;  // per prompt
  double bytes = 0;
  double prompt_tokens = 0;
  for (const Trial& trial : trials_) {
    const int64_t tokens = static_cast<int64_t>(trial.prompt.size()) - 1;
    const TokenRange range = HandedOver(encoder.spec(), tokens + 1);
    FrameStore frames(encoder.spec());
    EncodeTask task{&encoder, &frames, range.end};
    ALUDEL_RETURN_IF_ERROR(
        EncodePrompt(producer_, *producer_pool_, trial.prompt, tokens, absl::MakeSpan(&task, 1)));
    for (const WireFrame& frame : frames.frames()) {
      if (visit) ALUDEL_RETURN_IF_ERROR(visit(frame));
    }
    BlockTable table;
    ALUDEL_RETURN_IF_ERROR(
        table.Grow(*consumer_pool_, tokens + 1 + static_cast<int64_t>(trial.oracle.tokens.size())));
    const KvTarget target{&consumer_, consumer_pool_.get(), table.ids(), trial.prompt,
                          range.end,  range.begin};
    ALUDEL_RETURN_IF_ERROR(ApplyFrames(frames.frames(), decoder, target));
    ALUDEL_RETURN_IF_ERROR(RunTokens(consumer_, *consumer_pool_, table.ids(), trial.prompt, range.end, tokens,
                                     nullptr, nullptr));
    ALUDEL_ASSIGN_OR_RETURN(
        const Divergence divergence,
        CompareWithOracle(consumer_, *consumer_pool_, table.ids(), trial.prompt, trial.oracle));
    kl_sums.push_back(std::accumulate(divergence.kl.begin(), divergence.kl.end(), 0.0));
    answer_lengths.push_back(static_cast<double>(divergence.kl.size()));
    bytes += static_cast<double>(frames.total_bytes());
    prompt_tokens += static_cast<double>(trial.prompt.size());
  }
  const double answer_tokens = std::accumulate(answer_lengths.begin(), answer_lengths.end(), 0.0);
  return Result{std::accumulate(kl_sums.begin(), kl_sums.end(), 0.0) / std::max(1.0, answer_tokens),
                BootstrapMean(kl_sums, answer_lengths, kBootstrapSeed).high, bytes / prompt_tokens};
}

}  // namespace aludel
