#include "runtime/offline/evaluate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/hand_over.h"
#include "runtime/codec/oracle.h"
#include "runtime/model/json_reader.h"
#include "runtime/offline/compute_share.h"
#include "runtime/offline/questions.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

using Clock = std::chrono::steady_clock;

// A format under test with what it has shown so far.
struct Contestant {
  std::string name;
  std::unique_ptr<KvCodec> encoder;  // null: a control
  std::unique_ptr<KvCodec> decoder;
  double bytes = 0;
  double encode_seconds = 0;
  double reconstruct_seconds = 0;
  std::vector<double> f1, em;                   // per question
  std::vector<double> kl_sums, answer_lengths;  // per question
  std::vector<double> kl, tv;                   // per answer token
  std::vector<double> text_nats;                // per scored text token
};

absl::Status Cancelled() { return absl::CancelledError("evaluation was interrupted"); }

class Evaluation {
 public:
  Evaluation(const EvaluateJob& job, Device* device, const EvaluateProgress& progress)
      : job_(job), device_(device), progress_(progress) {}

  absl::StatusOr<EvaluateReport> Run() {
    ALUDEL_RETURN_IF_ERROR(Load());
    const auto total = static_cast<int64_t>(questions_.size());
    for (int64_t i = 0; i < total; ++i) {
      if (!progress_("questions", i, total)) return Cancelled();
      ALUDEL_RETURN_IF_ERROR(AskQuestion(questions_[i]));
    }
    progress_("questions", total, total);
    if (!job_.text.empty()) ALUDEL_RETURN_IF_ERROR(ScoreText());
    return Report();
  }

 private:
  absl::Status Load() {
    TransformerOptions options;
    options.compute = job_.compute;
    ALUDEL_ASSIGN_OR_RETURN(producer_, Transformer::Load(device_, job_.producer, options));
    ALUDEL_ASSIGN_OR_RETURN(consumer_, Transformer::Load(device_, job_.consumer, options));
    ALUDEL_ASSIGN_OR_RETURN(questions_, LoadQuestions(job_.qa, job_.questions));
    ALUDEL_ASSIGN_OR_RETURN(PromptWriter writer, PromptWriter::Load(job_.consumer));
    writer_ = std::make_unique<PromptWriter>(std::move(writer));
    ALUDEL_RETURN_IF_ERROR(OpenFormats());
    const int64_t blocks = consumer_->config().max_positions / kBlockTokens + 1;
    ALUDEL_ASSIGN_OR_RETURN(
        producer_pool_,
        BlockPool::Create(device_, producer_->MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
    ALUDEL_ASSIGN_OR_RETURN(
        consumer_pool_,
        BlockPool::Create(device_, consumer_->MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
    return absl::OkStatus();
  }

  absl::Status OpenFormats() {
    ALUDEL_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFormats(job_.codec));
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> controls, ListControls(job_.codec));
    const auto is_control = [&controls](const std::string& name) {
      return std::find(controls.begin(), controls.end(), name) != controls.end();
    };
    const std::vector<std::string> baselines = ListBaselines();
    names.insert(names.end(), baselines.begin(), baselines.end());
    names.insert(names.end(), controls.begin(), controls.end());
    if (job_.formats != "all") names = absl::StrSplit(job_.formats, ',', absl::SkipEmpty());
    for (const std::string& name : names) {
      Contestant contestant;
      contestant.name = name;
      if (!is_control(name)) {
        ALUDEL_ASSIGN_OR_RETURN(contestant.encoder,
                                OpenCodec(name, job_.codec, CodecSide::kProducer, *producer_));
      }
      ALUDEL_ASSIGN_OR_RETURN(contestant.decoder,
                              OpenCodec(name, job_.codec, CodecSide::kConsumer, *consumer_));
      contestants_.push_back(std::move(contestant));
    }
    if (contestants_.empty()) return absl::InvalidArgumentError("--formats names no format");
    return absl::OkStatus();
  }

  // Encodes tokens [0, tokens) of `ids` once for every contestant that ships anything. [contestants]
  absl::StatusOr<std::vector<std::vector<StoredFrame>>> EncodeAll(absl::Span<const int32_t> ids,
                                                                  int64_t tokens) {
    std::vector<std::unique_ptr<FrameStore>> stores(contestants_.size());
    std::vector<EncodeTask> tasks;
    for (size_t i = 0; i < contestants_.size(); ++i) {
      if (contestants_[i].encoder == nullptr) continue;
      stores[i] = std::make_unique<FrameStore>(*contestants_[i].encoder);
      tasks.push_back({contestants_[i].encoder.get(), stores[i].get()});
    }
    ALUDEL_RETURN_IF_ERROR(EncodePrompt(*producer_, *producer_pool_, ids, tokens, absl::MakeSpan(tasks)));
    std::vector<std::vector<StoredFrame>> frames(contestants_.size());
    size_t task = 0;
    for (size_t i = 0; i < contestants_.size(); ++i) {
      if (stores[i] == nullptr) continue;
      contestants_[i].bytes += static_cast<double>(stores[i]->total_bytes());
      contestants_[i].encode_seconds += tasks[task++].seconds;
      frames[i] = stores[i]->frames();
    }
    return frames;
  }

  absl::Status Reconstruct(Contestant& contestant, const std::vector<StoredFrame>& frames,
                           absl::Span<const int32_t> ids, int64_t tokens, const BlockTable& table) {
    const KvTarget target{consumer_.get(), consumer_pool_.get(), table.ids(), ids, tokens};
    const Clock::time_point start = Clock::now();
    ALUDEL_RETURN_IF_ERROR(ApplyFrames(frames, *contestant.decoder, target));
    contestant.reconstruct_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    return absl::OkStatus();
  }

  std::string Text(const Answer& answer) const {
    return AnswerText(writer_->tokenizer().Decode(answer.tokens, /*skip_special_tokens=*/true));
  }

  absl::Status AskQuestion(const Question& question) {
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, writer_->Write(question));
    const int64_t tokens = static_cast<int64_t>(prompt.size()) - 1;
    const int64_t room = tokens + 1 + job_.max_answer_tokens;
    if (tokens < 1 || room > consumer_->config().max_positions) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: a prompt has %d tokens; with an answer of %d the model holds %d", job_.qa,
                          prompt.size(), job_.max_answer_tokens, consumer_->config().max_positions));
    }
    BlockTable table;
    ALUDEL_RETURN_IF_ERROR(table.Grow(*consumer_pool_, room));
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(*consumer_, *consumer_pool_, table.ids(), prompt, 0, tokens, nullptr, nullptr));
    ALUDEL_ASSIGN_OR_RETURN(const Answer oracle, AnswerGreedily(*consumer_, *consumer_pool_, table.ids(),
                                                                prompt, job_.max_answer_tokens));
    oracle_f1_.push_back(AnswerF1(Text(oracle), question.answers));
    oracle_em_.push_back(AnswerExactMatch(Text(oracle), question.answers));
    prompt_lengths_.push_back(static_cast<double>(prompt.size()));

    ALUDEL_ASSIGN_OR_RETURN(const auto frames, EncodeAll(prompt, tokens));
    for (size_t i = 0; i < contestants_.size(); ++i) {
      Contestant& contestant = contestants_[i];
      ALUDEL_RETURN_IF_ERROR(Reconstruct(contestant, frames[i], prompt, tokens, table));
      ALUDEL_ASSIGN_OR_RETURN(const Divergence divergence,
                              CompareWithOracle(*consumer_, *consumer_pool_, table.ids(), prompt, oracle));
      ALUDEL_ASSIGN_OR_RETURN(const Answer answer, AnswerGreedily(*consumer_, *consumer_pool_, table.ids(),
                                                                  prompt, job_.max_answer_tokens));
      contestant.f1.push_back(AnswerF1(Text(answer), question.answers));
      contestant.em.push_back(AnswerExactMatch(Text(answer), question.answers));
      double sum = 0;
      for (const double kl : divergence.kl) sum += kl;
      contestant.kl_sums.push_back(sum);
      contestant.answer_lengths.push_back(static_cast<double>(divergence.kl.size()));
      contestant.kl.insert(contestant.kl.end(), divergence.kl.begin(), divergence.kl.end());
      contestant.tv.insert(contestant.tv.end(), divergence.tv.begin(), divergence.tv.end());
    }
    return absl::OkStatus();
  }

  // Nats of tokens [begin, end) of `ids`, each after all before it; tokens [0, begin - 1) are in the cache.
  absl::Status ScoreTokens(absl::Span<const int32_t> ids, int64_t begin, const BlockTable& table,
                           std::vector<double>* nats) {
    const auto end = static_cast<int64_t>(ids.size());
    std::vector<float> logits;
    const auto vocab = static_cast<size_t>(consumer_->config().vocab);
    for (int64_t at = begin - 1; at + 1 < end; ++at) {
      BatchItem item;
      item.ids = ids.subspan(at, 1);
      item.position = at;
      item.blocks = table.ids();
      item.wants_logits = true;
      ALUDEL_RETURN_IF_ERROR(consumer_->Forward(absl::MakeSpan(&item, 1), *consumer_pool_, &logits));
      nats->push_back(NegativeLogProbability(absl::MakeConstSpan(logits).first(vocab), ids[at + 1]));
    }
    return absl::OkStatus();
  }

  absl::Status ScoreText() {
    ALUDEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(job_.text, kMaxTextBytes));
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            writer_->tokenizer().Encode(text, /*add_special_tokens=*/true));
    const int64_t window = std::min(job_.window_tokens, consumer_->config().max_positions);
    const int64_t windows = std::min(job_.text_windows, static_cast<int64_t>(ids.size()) / window);
    if (windows < 1) {
      return absl::InvalidArgumentError(absl::StrFormat("%s holds %d tokens, want at least one window of %d",
                                                        job_.text, ids.size(), window));
    }
    for (int64_t w = 0; w < windows; ++w) {
      if (!progress_("text windows", w, windows)) return Cancelled();
      const absl::Span<const int32_t> part = absl::MakeConstSpan(ids).subspan(w * window, window);
      const int64_t handed_over = window / 2 - 1;
      BlockTable table;
      ALUDEL_RETURN_IF_ERROR(table.Grow(*consumer_pool_, window));
      ALUDEL_RETURN_IF_ERROR(
          RunTokens(*consumer_, *consumer_pool_, table.ids(), part, 0, handed_over, nullptr, nullptr));
      ALUDEL_RETURN_IF_ERROR(ScoreTokens(part, handed_over + 1, table, &oracle_nats_));
      // Codes of text count neither in bytes nor in speed: those are of the questions.
      const std::vector<Contestant*> all = Pointers();
      std::vector<std::array<double, 3>> before;
      before.reserve(all.size());
      for (const Contestant* c : all) before.push_back({c->bytes, c->encode_seconds, c->reconstruct_seconds});
      ALUDEL_ASSIGN_OR_RETURN(const auto frames, EncodeAll(part, handed_over));
      for (size_t i = 0; i < all.size(); ++i) {
        ALUDEL_RETURN_IF_ERROR(Reconstruct(*all[i], frames[i], part, handed_over, table));
        ALUDEL_RETURN_IF_ERROR(ScoreTokens(part, handed_over + 1, table, &all[i]->text_nats));
        all[i]->bytes = before[i][0];
        all[i]->encode_seconds = before[i][1];
        all[i]->reconstruct_seconds = before[i][2];
      }
    }
    progress_("text windows", windows, windows);
    return absl::OkStatus();
  }

  std::vector<Contestant*> Pointers() {
    std::vector<Contestant*> pointers;
    for (Contestant& contestant : contestants_) pointers.push_back(&contestant);
    return pointers;
  }

  FormatResult Result(const Contestant& c, double raw_bytes) const {
    const double prompt_tokens = Sum(prompt_lengths_);
    const double handed_over = prompt_tokens - static_cast<double>(questions_.size());
    FormatResult result;
    result.name = c.name;
    result.native_layers = c.decoder->native_layers();
    result.consumer_compute_share = MeanComputeShare(consumer_->config(), *c.decoder, prompt_lengths_);
    result.bytes_per_token = c.bytes / prompt_tokens;
    result.bytes_vs_raw = c.bytes / raw_bytes;
    result.f1 = Mean(c.f1);
    result.f1_ci95 = BootstrapMean(c.f1, {}, job_.seed);
    std::vector<double> loss = oracle_f1_;
    for (size_t i = 0; i < loss.size(); ++i) loss[i] -= c.f1[i];
    result.f1_loss_ci95 = BootstrapMean(loss, {}, job_.seed);
    result.em = Mean(c.em);
    result.kl = Mean(c.kl);
    result.kl_ci95 = BootstrapMean(c.kl_sums, c.answer_lengths, job_.seed);
    result.kl_p95 = Percentile(c.kl, 0.95);
    result.tv = Mean(c.tv);
    if (!c.text_nats.empty()) result.ppl = std::exp(Mean(c.text_nats));
    if (c.encode_seconds > 0) result.encode_tokens_per_s = handed_over / c.encode_seconds;
    if (c.reconstruct_seconds > 0) result.reconstruct_tokens_per_s = handed_over / c.reconstruct_seconds;
    return result;
  }

  static double Sum(const std::vector<double>& values) {
    return Mean(values) * static_cast<double>(values.size());
  }

  EvaluateReport Report() const {
    EvaluateReport report;
    report.producer = job_.producer;
    report.consumer = job_.consumer;
    report.producer_hash = producer_->hash();
    report.consumer_hash = consumer_->hash();
    report.compute = Name(job_.compute);
    report.questions = static_cast<int64_t>(questions_.size());
    report.prompt_tokens = static_cast<int64_t>(Sum(prompt_lengths_) + 0.5);
    report.answer_tokens = static_cast<int64_t>(contestants_.front().kl.size());
    report.oracle_f1 = Mean(oracle_f1_);
    report.oracle_f1_ci95 = BootstrapMean(oracle_f1_, {}, job_.seed);
    report.oracle_em = Mean(oracle_em_);
    if (!oracle_nats_.empty()) report.oracle_ppl = std::exp(Mean(oracle_nats_));
    // Raw bytes of all prompt tokens, without headers: a figure of the model, not of a format.
    const KvLayout layout = consumer_->MakeKvLayout(1, kBlockTokens, DType::kBf16);
    const double raw_bytes = Sum(prompt_lengths_) * static_cast<double>(layout.bytes_per_token());
    for (const Contestant& contestant : contestants_) {
      report.formats.push_back(Result(contestant, raw_bytes));
    }
    return report;
  }

  const EvaluateJob& job_;
  Device* device_;
  const EvaluateProgress& progress_;
  std::unique_ptr<Transformer> producer_, consumer_;
  std::unique_ptr<BlockPool> producer_pool_, consumer_pool_;
  std::unique_ptr<PromptWriter> writer_;
  std::vector<Question> questions_;
  std::vector<Contestant> contestants_;
  std::vector<double> oracle_f1_, oracle_em_, prompt_lengths_, oracle_nats_;
};

}  // namespace

absl::StatusOr<EvaluateReport> Evaluate(const EvaluateJob& job, Device* device,
                                        const EvaluateProgress& progress) {
  return Evaluation(job, device, progress).Run();
}

}  // namespace aludel
