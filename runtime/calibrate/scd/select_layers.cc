#include "runtime/calibrate/scd/select_layers.h"

#include <algorithm>
#include <memory>

#include "runtime/codec/handoff.h"
#include "runtime/codec/scd/encode.h"
#include "runtime/codec/scd/reconstruct.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;

// One held-out prompt: what the consumer answers by itself, and the producer's codes of every layer
// both ways.
struct Trial {
  absl::Span<const int32_t> prompt;
  Answer oracle;
  std::vector<WireFrame> reuse, patch;
};

absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const Transformer& model, int64_t tokens) {
  const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  return BlockPool::Create(model.device(), model.MakeKvLayout(blocks, kBlockTokens, DType::kBf16));
}

// Measures sets of patched layers.
class Experiment {
 public:
  static absl::StatusOr<std::unique_ptr<Experiment>> Create(Transformer& producer, Transformer& consumer,
                                                            const ScdCandidates& candidates,
                                                            int64_t max_tokens) {
    std::unique_ptr<Experiment> e(new Experiment(producer, consumer));
    ALUDEL_ASSIGN_OR_RETURN(e->producer_pool_, MakePool(producer, max_tokens));
    ALUDEL_ASSIGN_OR_RETURN(e->consumer_pool_, MakePool(consumer, max_tokens));
    ALUDEL_ASSIGN_OR_RETURN(e->reuse_encoder_,
                            MakeScdEncoders("reuse", "", candidates.reuse_encoder, producer));
    ALUDEL_ASSIGN_OR_RETURN(e->patch_encoder_,
                            MakeScdEncoders("patch", "", candidates.patch_encoder, producer));
    ALUDEL_ASSIGN_OR_RETURN(e->reuse_decoder_,
                            MakeScdDecoders("reuse", "", candidates.reuse_decoder, consumer));
    ALUDEL_ASSIGN_OR_RETURN(e->patch_decoder_,
                            MakeScdDecoders("patch", "", candidates.patch_decoder, consumer));
    ALUDEL_ASSIGN_OR_RETURN(e->reuse_, e->reuse_decoder_->NewDecoder());
    ALUDEL_ASSIGN_OR_RETURN(e->patch_, e->patch_decoder_->NewDecoder());
    return e;
  }

  absl::Status AddPrompt(absl::Span<const int32_t> prompt, int max_answer_tokens) {
    const int64_t tokens = static_cast<int64_t>(prompt.size()) - 1;
    Trial trial;
    trial.prompt = prompt;
    BlockTable table;
    ALUDEL_RETURN_IF_ERROR(table.Grow(*consumer_pool_, tokens + 1 + max_answer_tokens));
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(consumer_, *consumer_pool_, table.ids(), prompt, 0, tokens, nullptr, nullptr));
    ALUDEL_ASSIGN_OR_RETURN(
        trial.oracle, AnswerGreedily(consumer_, *consumer_pool_, table.ids(), prompt, max_answer_tokens));
    FrameStore reuse(reuse_encoder_->spec());
    FrameStore patch(patch_encoder_->spec());
    EncodeTask tasks[] = {{reuse_encoder_.get(), &reuse}, {patch_encoder_.get(), &patch}};
    ALUDEL_RETURN_IF_ERROR(EncodePrompt(producer_, *producer_pool_, prompt, tokens, absl::MakeSpan(tasks)));
    trial.reuse = reuse.frames();
    trial.patch = patch.frames();
    trials_.push_back(std::move(trial));
    return absl::OkStatus();
  }

  // Mean KL over all answer tokens with `patched[layer]` layers patched.
  absl::StatusOr<double> MeanKl(const std::vector<bool>& patched) {
    double sum = 0;
    int64_t count = 0;
    for (const Trial& trial : trials_) {
      const int64_t tokens = static_cast<int64_t>(trial.prompt.size()) - 1;
      BlockTable table;
      ALUDEL_RETURN_IF_ERROR(
          table.Grow(*consumer_pool_, tokens + 1 + static_cast<int64_t>(trial.oracle.tokens.size())));
      const KvTarget target{&consumer_, consumer_pool_.get(), table.ids(), trial.prompt, tokens};
      ALUDEL_RETURN_IF_ERROR(Replay(trial.reuse, *reuse_, patched, false, target));
      ALUDEL_RETURN_IF_ERROR(Replay(trial.patch, *patch_, patched, true, target));
      ALUDEL_ASSIGN_OR_RETURN(
          const Divergence divergence,
          CompareWithOracle(consumer_, *consumer_pool_, table.ids(), trial.prompt, trial.oracle));
      for (const double kl : divergence.kl) sum += kl;
      count += static_cast<int64_t>(divergence.kl.size());
    }
    return sum / static_cast<double>(std::max<int64_t>(1, count));
  }

 private:
  Experiment(Transformer& producer, Transformer& consumer) : producer_(producer), consumer_(consumer) {}

  // Applies the frames of the layers whose flag equals `want`.
  static absl::Status Replay(const std::vector<WireFrame>& frames, KvDecoder& decoder,
                             const std::vector<bool>& patched, bool want, const KvTarget& target) {
    for (const WireFrame& frame : frames) {
      ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
      if (patched[header.coverage.first_layer] != want) continue;
      ALUDEL_RETURN_IF_ERROR(decoder.Apply(header.coverage, frame.payload, target));
    }
    return absl::OkStatus();
  }

  Transformer& producer_;
  Transformer& consumer_;
  std::unique_ptr<BlockPool> producer_pool_, consumer_pool_;
  std::unique_ptr<EncoderFactory> reuse_encoder_, patch_encoder_;
  std::unique_ptr<DecoderFactory> reuse_decoder_, patch_decoder_;
  std::unique_ptr<KvDecoder> reuse_, patch_;
  std::vector<Trial> trials_;
};

}  // namespace

size_t PatchSelection::MostEfficient() const {
  size_t best = 0;
  double best_efficiency = 0;
  for (size_t k = 1; k <= kl.size(); ++k) {
    const double efficiency = Gain(k) / static_cast<double>(k);
    if (efficiency > best_efficiency) {
      best = k;
      best_efficiency = efficiency;
    }
  }
  return best;
}

absl::StatusOr<PatchSelection> SelectPatchLayers(Transformer& producer, Transformer& consumer,
                                                 const ScdCandidates& candidates,
                                                 const std::vector<std::vector<int32_t>>& prompts,
                                                 int max_layers, int max_answer_tokens,
                                                 const CalibrationProgress& progress) {
  const int layers = producer.config().layers;
  const int steps = std::min(max_layers, layers);
  size_t longest = 2;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  ALUDEL_ASSIGN_OR_RETURN(
      const auto experiment,
      Experiment::Create(producer, consumer, candidates, static_cast<int64_t>(longest) + max_answer_tokens));
  const auto prompt_count = static_cast<int64_t>(prompts.size());
  const int64_t measurements = 1 + steps * layers - steps * (steps - 1) / 2;
  int64_t done = 0;
  const auto go_on = [&](absl::string_view stage, int64_t total) -> absl::Status {
    if (progress(stage, done++, total)) return absl::OkStatus();
    return absl::CancelledError("calibration was interrupted");
  };
  for (const auto& prompt : prompts) {
    ALUDEL_RETURN_IF_ERROR(go_on("encode held-out prompts", prompt_count));
    if (prompt.size() > 1) ALUDEL_RETURN_IF_ERROR(experiment->AddPrompt(prompt, max_answer_tokens));
  }
  progress("encode held-out prompts", prompt_count, prompt_count);

  done = 0;
  PatchSelection selection;
  std::vector<bool> patched(layers, false);
  ALUDEL_RETURN_IF_ERROR(go_on("choose patch layers", measurements));
  ALUDEL_ASSIGN_OR_RETURN(selection.reuse_kl, experiment->MeanKl(patched));
  selection.sensitivity.resize(layers);
  for (int step = 0; step < steps; ++step) {
    int best = -1;
    double best_kl = 0;
    for (int layer = 0; layer < layers; ++layer) {
      if (patched[layer]) continue;
      ALUDEL_RETURN_IF_ERROR(go_on("choose patch layers", measurements));
      patched[layer] = true;
      ALUDEL_ASSIGN_OR_RETURN(const double kl, experiment->MeanKl(patched));
      patched[layer] = false;
      if (step == 0) selection.sensitivity[layer] = selection.reuse_kl - kl;
      if (best < 0 || kl < best_kl) {
        best = layer;
        best_kl = kl;
      }
    }
    patched[best] = true;
    selection.order.push_back(best);
    selection.kl.push_back(best_kl);
  }
  progress("choose patch layers", measurements, measurements);
  return selection;
}

}  // namespace aludel
