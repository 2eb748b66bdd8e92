#include "runtime/calibrate/tune_passages_job.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMostBranches = 12;  // of a passage: they share the memory of one pass
constexpr size_t kChunk = 16;         // passages whose states are a file, the most that an interruption loses
constexpr double kHeldOut = 0.1;      // of the passages, but
constexpr size_t kFewestHeldOut = 8;  // where that is no more than a quarter of them
constexpr int64_t kAnswerTokens = 6;  // what an answer is expected to have, before any is known

size_t HeldOut(size_t passages) {
  const size_t share = static_cast<size_t>(kHeldOut * static_cast<double>(passages));
  return std::max({size_t{1}, share, std::min(kFewestHeldOut, passages / 4)});
}

// Decoders read H of the layer at which recomputation ends, and none deeper.
int SideLayers(int recomputed_layers) { return recomputed_layers + 1; }

// A stage that is done in pieces, counted as one.
CalibrationProgress PieceOf(const CalibrationProgress& progress, size_t before, size_t total) {
  return [&progress, before, total](absl::string_view stage, int64_t done, int64_t) {
    return progress(stage, static_cast<int64_t>(before) + done, static_cast<int64_t>(total));
  };
}

std::string ModelKey(const Transformer& model) {
  return absl::StrCat(model.hash(), " ", Name(model.options().compute));
}

// What a run of the tuner depends on beside the answers.
std::string CheckpointName(const Transformer& consumer, const PassageTuning& options,
                           absl::Span<const Passage> passages, const std::vector<TunedGroup>& groups,
                           int max_answer_tokens, int64_t tail_tokens, double budget) {
  std::string key =
      absl::StrCat("tuning 2 ", tail_tokens, " ", budget, " ", ModelKey(consumer), " ", options.rank, " ",
                   options.epochs, " ", options.batch, " ", options.learning_rate, " ", options.head, " ",
                   options.judgements, " ", options.patience, " ", options.seed, " ", max_answer_tokens);
  const auto add = [&key](const auto& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    absl::StrAppend(&key, " ", Sha256Hex({bytes, values.size() * sizeof(values[0])}));
  };
  for (const Passage& passage : passages) {
    add(passage.ids);
    add(passage.branches);
  }
  for (const TunedGroup& group : groups) {
    add(group.net.linear.values);
    add(group.net.bias);
    add(group.scale);
  }
  return Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()}).substr(0, 24) + ".tuning";
}

void PrintState(const TuningState& state) {
  std::string line = absl::StrFormat("tuning, step %d of %d: KL %.4f on held-out passages", state.step,
                                     state.steps, state.held_out_kl);
  if (state.step > 0) {
    absl::StrAppendFormat(&line, " (best %.4f at step %d, first %.4f), %.4f on those learnt", state.best_kl,
                          state.best_step, state.first_kl, state.train_kl);
  }
  if (state.seconds_left > 0) absl::StrAppendFormat(&line, "; at most %.0f s left", state.seconds_left);
  PrintLine(line);
  std::fflush(stdout);
}

// The passages of a job with their states and, for one consumer at a time, answers and decoder inputs.
class Stage {
 public:
  Stage(const AludelTuning& tuning, const AludelEncoderWeights& encoder, const AludelShape& shape,
        const CalibrationProgress& progress)
      : tuning_(tuning),
        encoder_(encoder),
        shape_(shape),
        progress_(progress),
        directory_(tuning.work + "/tuning"),
        passages_(TuningPassages(tuning.more_prompts, Recomputed())) {}

  absl::Status Prepare() {
    ALUDEL_RETURN_IF_ERROR(CheckTuningPassages(tuning_.more_prompts, Recomputed()));
    return OpenFiles(*tuning_.producer, "producer prefills passages", &producer_);
  }

  absl::StatusOr<TuningResult> Tune(size_t consumer, const std::vector<TargetMetric>& metrics,
                                    TrainedDecoder* decoder) {
    Transformer& model = *tuning_.consumers[consumer];
    const std::function<bool()> time_is_up = TimeOf(consumer);
    std::vector<std::unique_ptr<StateFile>> own;
    ALUDEL_RETURN_IF_ERROR(OpenFiles(model, "consumer prefills passages", &own));
    ALUDEL_ASSIGN_OR_RETURN(const auto weights,
                            CacheGradient::Load(ModelPath::Parse(tuning_.directories[consumer]),
                                                /*rope_length=*/0, tuning_.matrices));
    std::vector<std::vector<PassageAnswers>> answers;
    std::vector<std::vector<TuningText::Inputs>> inputs;
    for (size_t c = 0; c < chunks(); ++c) {
      const size_t begin = c * kChunk;
      if (!progress_("answer the questions", static_cast<int64_t>(begin),
                     static_cast<int64_t>(passages_.size()))) {
        return absl::CancelledError("calibration was interrupted");
      }
      ALUDEL_ASSIGN_OR_RETURN(auto answered,
                              OpenPassageAnswers(directory_, ModelKey(model), *weights, *own[c], Chunk(c),
                                                 tuning_.max_answer_tokens, progress_));
      for (size_t i = 0; i < answered.size(); ++i) {
        answered[i].RecomputeTails(passages_[begin + i], shape_.tail_tokens);
      }
      answers.push_back(std::move(answered));
      inputs.push_back(DecoderInputs(encoder_, shape_, *decoder, *producer_[c], *own[c]));
    }
    progress_("answer the questions", static_cast<int64_t>(passages_.size()),
              static_cast<int64_t>(passages_.size()));
    std::vector<TuningPassage> train, held_out;
    for (size_t c = 0; c < chunks(); ++c) {
      int64_t row = 0;
      for (size_t i = 0; i < answers[c].size(); ++i) {
        const Passage& passage = passages_[c * kChunk + i];
        const bool learnt = c * kChunk + i < passages_.size() - HeldOut(passages_.size());
        (learnt ? train : held_out).push_back({own[c].get(), &inputs[c], &passage, &answers[c][i], row});
        row += passage.tokens();
      }
    }
    PassageTuning options = tuning_.passages;
    options.head = shape_.head_tokens;
    options.time_is_up = time_is_up;
    std::vector<TunedGroup> groups = ToTuned(shape_, own.front()->layout(), metrics, decoder);
    const std::string checkpoint =
        absl::StrCat(directory_, "/",
                     CheckpointName(model, options, passages_, groups, tuning_.max_answer_tokens,
                                    shape_.tail_tokens, tuning_.time.budget));
    PassageTuner tuner(std::move(groups), options, checkpoint, PrintState);
    ALUDEL_ASSIGN_OR_RETURN(const TuningState state, tuner.Run(*weights, train, held_out, progress_));
    FromTuned(std::move(tuner).TakeGroups(), decoder);
    return TuningResult{state.first_kl, state.best_kl};
  }

 private:
  RecomputedTokens Recomputed() const { return {shape_.head_tokens, shape_.tail_tokens}; }

  // Whether a consumer that begins now has had its part of the time, its prefills and answers included: those behind it
  // have the same. None: it takes what it takes.
  std::function<bool()> TimeOf(size_t consumer) const {
    const TimeLimit& time = tuning_.time;
    if (!time.seconds_left) return nullptr;
    const auto consumers = static_cast<double>(tuning_.consumers.size() - consumer);
    const double of_others = std::max(0.0, time.Left()) * (1 - 1 / consumers);
    return [&time, of_others] { return time.Left() <= of_others; };
  }

  size_t chunks() const { return (passages_.size() + kChunk - 1) / kChunk; }
  absl::Span<const Passage> Chunk(size_t c) const {
    return absl::MakeConstSpan(passages_).subspan(c * kChunk, kChunk);
  }

  absl::Status OpenFiles(Transformer& model, absl::string_view stage,
                         std::vector<std::unique_ptr<StateFile>>* files) {
    for (size_t c = 0; c < chunks(); ++c) {
      ALUDEL_ASSIGN_OR_RETURN(
          auto file, OpenPassageStates(directory_, model, Chunk(c), SideLayers(shape_.recomputed_layers),
                                       stage, PieceOf(progress_, c * kChunk, passages_.size())));
      files->push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  const AludelTuning& tuning_;
  const AludelEncoderWeights& encoder_;
  const AludelShape& shape_;
  const CalibrationProgress& progress_;
  const std::string directory_;
  const std::vector<Passage> passages_;
  std::vector<std::unique_ptr<StateFile>> producer_;  // [chunks]
};

}  // namespace

std::vector<Passage> TuningPassages(absl::Span<const std::vector<int32_t>> prompts,
                                    const RecomputedTokens& recomputed) {
  std::vector<Passage> passages = GroupPassages(prompts, kMostBranches, recomputed.tail);
  passages.erase(std::remove_if(passages.begin(), passages.end(),
                                [&](const Passage& passage) { return passage.trunk() <= recomputed.head; }),
                 passages.end());
  return passages;
}

absl::Status CheckTuningPassages(absl::Span<const std::vector<int32_t>> prompts,
                                 const RecomputedTokens& recomputed) {
  const size_t passages = TuningPassages(prompts, recomputed).size();
  if (passages >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "tuning learns from some passages and watches others: %d of --tuning-data are longer "
      "than the %d tokens at their head and the %d at their tail that the consumer computes, "
      "want at least 2: give questions about more texts, or fewer --head-tokens or --tail-tokens",
      passages, recomputed.head, recomputed.tail));
}

std::vector<int64_t> WholePassages(absl::Span<const std::vector<int32_t>> prompts,
                                   const RecomputedTokens& recomputed) {
  constexpr int kFewest = 8;
  std::vector<int64_t> ends;
  int64_t end = 0;
  int decoded = 0;
  for (const Passage& passage : GroupPassages(prompts, kMostBranches, recomputed.tail)) {
    end += static_cast<int64_t>(passage.branches.size());
    if (passage.trunk() > recomputed.head) ++decoded;
    if (decoded >= kFewest) ends.push_back(end);
  }
  return ends;
}

PassagePlan CountPassages(const ModelConfig& config, size_t consumers,
                          absl::Span<const std::vector<int32_t>> prompts, const PassageTuning& options,
                          DType matrices, int recomputed_layers, int64_t tail_tokens) {
  PassagePlan plan;
  int64_t recomputed = 0;
  for (const Passage& passage : TuningPassages(prompts, {/*head=*/0, tail_tokens})) {
    ++plan.passages;
    plan.prompts += static_cast<int64_t>(passage.branches.size());
    plan.tokens += passage.tokens();
    for (size_t b = 0; b < passage.branches.size(); ++b) {
      recomputed += std::min(tail_tokens, passage.end(b) - 1 - passage.branches[b]);
    }
  }
  const auto models = static_cast<int64_t>(1 + consumers);
  const int64_t layer = int64_t{config.hidden} * (2 * config.q_dim() + 2 * config.kv_dim() + 3 * config.ffn);
  const int64_t head = int64_t{config.vocab} * config.hidden;
  const int64_t inner = config.layers * layer;
  plan.disk = StateBytes(config, SideLayers(recomputed_layers), plan.tokens) * static_cast<size_t>(models);
  const int64_t parameters = inner + head * (config.tied_embeddings ? 1 : 2);
  plan.memory = static_cast<size_t>(parameters) * (matrices == DType::kF32 ? 4 : 2);
  // Prefills; the answers, whose passes of a token for each prompt read all weights again and are taken to be half as
  // long as one of all their tokens; then forward and back, judgements among them.
  const int64_t answers = plan.prompts * kAnswerTokens;
  const int64_t tail = answers + recomputed;
  plan.prefills = static_cast<double>(plan.tokens * models * inner);
  plan.tails = static_cast<double>((models - 1) * (inner + head)) *
               (0.5 * kAnswerTokens * static_cast<double>(answers) +
                static_cast<double>(tail) * (2.0 * static_cast<double>(options.epochs) +
                                             kHeldOut * static_cast<double>(options.judgements)));
  if (plan.passages == 0) return plan;
  plan.pass_rows = plan.tokens / plan.passages;
  plan.pass_tail = tail / plan.passages;
  plan.pass = static_cast<double>((inner + head) * plan.pass_tail);
  return plan;
}

absl::StatusOr<std::vector<TuningResult>> TuneByPassages(
    const AludelTuning& tuning, const AludelEncoderWeights& encoder, const AludelShape& shape,
    const std::vector<std::vector<TargetMetric>>& metrics, const CalibrationProgress& progress,
    std::vector<TrainedDecoder>* decoders) {
  Stage stage(tuning, encoder, shape, progress);
  ALUDEL_RETURN_IF_ERROR(stage.Prepare());
  std::vector<TuningResult> results;
  for (size_t c = 0; c < decoders->size(); ++c) {
    ALUDEL_ASSIGN_OR_RETURN(const TuningResult result, stage.Tune(c, metrics[c], &(*decoders)[c]));
    results.push_back(result);
  }
  return results;
}

}  // namespace aludel
