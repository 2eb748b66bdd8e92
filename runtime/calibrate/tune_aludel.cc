#include "runtime/calibrate/tune_aludel.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/calibrate/aludel/checkpoint.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

class Job {
 public:
  Job(const AludelTuning& tuning, const AludelEncoderWeights& encoder, const AludelShape& shape,
      const CalibrationProgress& progress, const std::vector<TrainedDecoder>& decoders)
      : tuning_(tuning),
        encoder_(encoder),
        shape_(shape),
        progress_(progress),
        decoders_(decoders),
        results_(decoders.size()) {}

  absl::Status Run(std::vector<DecoderTuner>* tuners) {
    Restore(tuners);
    const StateFile& producer = *tuning_.states->producer;
    const auto rows = TrainingRows(producer);
    size_t trained = 0;
    for (int64_t row = 0; trained < tuning_.prompts.size(); ++trained) {
      const size_t tokens = tuning_.prompts[trained].size();
      row += static_cast<int64_t>(tokens) - producer.HeadTokens(tokens);
      if (row > rows) break;
    }
    if (tuning_.options.passes > 0) {
      ALUDEL_RETURN_IF_ERROR(Tune(producer, tuning_.states->consumers, tuning_.prompts.first(trained),
                                  tuning_.options.passes, tuners));
    }
    for (size_t begin = 0; begin < tuning_.more_prompts.size() && !tuning_.time.Over();
         begin += kTuningChunk) {
      ALUDEL_RETURN_IF_ERROR(Chunk(tuning_.more_prompts.subspan(begin, kTuningChunk), tuners));
    }
    if (!begun_ && restored_ == 0) results_.clear();
    return absl::OkStatus();
  }

  const std::vector<TuningResult>& results() const { return results_; }

 private:
  // Everything that decides the course of tuning; another budget cuts it elsewhere.
  std::string CheckpointPath(std::vector<DecoderTuner>* tuners) const {
    const DecoderTuning& options = tuning_.options;
    std::string key = absl::StrCat(
        "tuning of all weights 3 ", tuning_.time.budget, " ", tuning_.producer->hash(), " ", options.passes,
        " ", options.batch, " ", options.learning_rate, " ", options.stretch, " ", options.stretch_weight,
        " ", options.seed, " ", tuning_.max_answer_tokens, " ", Name(tuning_.producer->options().compute));
    for (const auto& consumer : tuning_.consumers) absl::StrAppend(&key, " ", consumer->hash());
    const auto add = [&key](const auto& values) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
      absl::StrAppend(&key, " ", Sha256Hex({bytes, values.size() * sizeof(values[0])}));
    };
    for (const auto& prompts : {tuning_.prompts, tuning_.more_prompts}) {
      for (const auto& prompt : prompts) add(prompt);
    }
    for (DecoderTuner& tuner : *tuners) {
      for (const std::vector<float>* values : tuner.Weights()) add(*values);
    }
    return absl::StrCat(tuning_.work, "/",
                        Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()}).substr(0, 24),
                        ".tuned");
  }

  static WeightList WeightsOfAll(std::vector<DecoderTuner>* tuners) {
    WeightList all;
    for (DecoderTuner& tuner : *tuners) {
      const WeightList weights = tuner.Weights();
      all.insert(all.end(), weights.begin(), weights.end());
    }
    return all;
  }

  // Of every tuner: steps, draws, first and last KL; then the passes that are done.
  absl::Status Save(std::vector<DecoderTuner>* tuners) const {
    std::vector<double> course;
    for (size_t c = 0; c < tuners->size(); ++c) {
      const DecoderTuner::Course at = (*tuners)[c].course();
      course.insert(course.end(), {static_cast<double>(at.step), static_cast<double>(at.draws),
                                   results_[c].first_kl, results_[c].last_kl});
    }
    course.push_back(static_cast<double>(done_));
    return SaveCheckpoint(checkpoint_, course, WeightsOfAll(tuners));
  }

  void Restore(std::vector<DecoderTuner>* tuners) {
    checkpoint_ = CheckpointPath(tuners);
    std::vector<double> course(4 * tuners->size() + 1);
    if (!LoadCheckpoint(checkpoint_, absl::MakeSpan(course), WeightsOfAll(tuners))) return;
    for (size_t c = 0; c < tuners->size(); ++c) {
      const double* at = course.data() + 4 * c;
      (*tuners)[c].Resume({static_cast<int64_t>(at[0]), static_cast<int64_t>(at[1])});
      results_[c] = {at[2], at[3]};
    }
    restored_ = static_cast<int64_t>(course.back());
  }

  // Whether the next `passes` were done before an interruption; then they count as done.
  bool Skips(int64_t passes) {
    if (done_ + passes > restored_) return false;
    done_ += passes;
    return true;
  }

  absl::Status Chunk(absl::Span<const std::vector<int32_t>> prompts, std::vector<DecoderTuner>* tuners) {
    if (Skips(static_cast<int64_t>(tuners->size()))) {
      begun_ = true;
      return absl::OkStatus();
    }
    const std::string directory = absl::StrCat(tuning_.work, "/tuning");
    const int64_t head = tuning_.states->producer->head();
    ALUDEL_ASSIGN_OR_RETURN(const auto producer,
                            OpenStates(directory, *tuning_.producer, prompts, tuning_.side_layers, head,
                                       "producer prefills more text", progress_));
    std::vector<std::unique_ptr<StateFile>> consumers;
    for (const auto& consumer : tuning_.consumers) {
      ALUDEL_ASSIGN_OR_RETURN(auto states, OpenStates(directory, *consumer, prompts, tuning_.side_layers,
                                                      head, "consumers prefill more text", progress_));
      consumers.push_back(std::move(states));
    }
    // The files are mapped and need their names no longer.
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    return Tune(*producer, consumers, prompts, /*passes=*/1, tuners);
  }

  absl::Status Tune(const StateFile& producer, absl::Span<const std::unique_ptr<StateFile>> consumers,
                    absl::Span<const std::vector<int32_t>> prompts, int64_t passes,
                    std::vector<DecoderTuner>* tuners) {
    for (size_t c = 0; c < tuners->size(); ++c) {
      if (Skips(passes)) continue;
      // One consumer's at a time: they take as much as the model again.
      ALUDEL_ASSIGN_OR_RETURN(const auto weights,
                              CacheGradient::Load(ModelPath::Parse(tuning_.directories[c])));
      ALUDEL_ASSIGN_OR_RETURN(
          const std::vector<TuningPrompt> answered,
          AnswerPrompts(*weights, *consumers[c], prompts, tuning_.max_answer_tokens, progress_));
      const TuningText text{consumers[c].get(),
                            DecoderInputs(encoder_, shape_, decoders_[c], producer, *consumers[c]), answered};
      // Of a time that is over every consumer still gets a step.
      int64_t pass = 0;
      for (; pass < passes && (pass == 0 || !tuning_.time.Over()); ++pass) {
        if (Skips(1)) continue;
        ALUDEL_ASSIGN_OR_RETURN(results_[c].last_kl, (*tuners)[c].Pass(*weights, text, progress_));
        if (!begun_ && pass == 0) results_[c].first_kl = results_[c].last_kl;
        ++done_;
        ALUDEL_RETURN_IF_ERROR(Save(tuners));
      }
      if (pass == passes) continue;
      // What there was no time for counts as done, so that a run that is resumed finds its place among what follows.
      done_ += passes - pass;
      ALUDEL_RETURN_IF_ERROR(Save(tuners));
    }
    begun_ = true;
    return absl::OkStatus();
  }

  const AludelTuning& tuning_;
  const AludelEncoderWeights& encoder_;
  const AludelShape& shape_;
  const CalibrationProgress& progress_;
  const std::vector<TrainedDecoder>& decoders_;
  std::vector<TuningResult> results_;
  bool begun_ = false;
  std::string checkpoint_;
  int64_t done_ = 0;      // passes of a consumer over a text
  int64_t restored_ = 0;  // that an interrupted run had done
};

}  // namespace

absl::StatusOr<std::vector<TuningResult>> TuneAludelDecoders(
    const AludelTuning& tuning, const AludelEncoderWeights& encoder, const AludelShape& shape,
    const std::vector<std::vector<TargetMetric>>& metrics, const CalibrationProgress& progress,
    std::vector<TrainedDecoder>* decoders) {
  const auto prompts = tuning.options.passes * static_cast<int64_t>(tuning.prompts.size()) +
                       static_cast<int64_t>(tuning.more_prompts.size());
  DecoderTuning options = tuning.options;
  options.time_is_up = [&tuning] { return tuning.time.Over(); };
  std::vector<DecoderTuner> tuners;
  for (size_t c = 0; c < decoders->size(); ++c) {
    tuners.emplace_back(ToTuned(shape, tuning.states->consumers[c]->layout(), metrics[c], &(*decoders)[c]),
                        options, prompts);
  }
  Job job(tuning, encoder, shape, progress, *decoders);
  ALUDEL_RETURN_IF_ERROR(job.Run(&tuners));
  for (size_t c = 0; c < decoders->size(); ++c) {
    FromTuned(std::move(tuners[c]).TakeGroups(), &(*decoders)[c]);
  }
  return job.results();
}

}  // namespace aludel
