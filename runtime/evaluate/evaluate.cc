#include "runtime/evaluate/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/compute_share.h"
#include "runtime/evaluate/evaluation_log.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/evaluate/questions.h"
#include "runtime/files/json_reader.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;
// Text tokens whose logits are in memory at once.
constexpr int64_t kScoredTogether = 32;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

using Clock = std::chrono::steady_clock;

// A format under test with what it has shown so far.
struct Contestant {
  std::string name;
  std::unique_ptr<KvCodec> encoder;  // null: a control
  std::unique_ptr<KvCodec> decoder;
  const ArtifactFormat* format = nullptr;  // null: not of an artifact
  double bytes = 0;
  double handed_over = 0;  // tokens
  double encode_seconds = 0;
  double reconstruct_seconds = 0;
  std::vector<double> f1, em;                   // per question
  std::vector<double> kl_sums, answer_lengths;  // per question
  std::vector<double> kl, tv;                   // per answer token
  std::vector<double> text_nats;                // per scored text token
  std::vector<LayerError> errors;               // per layer
  std::vector<Share> shares;

  void Add(const FormatRecord& record) {
    bytes += record.bytes;
    handed_over += static_cast<double>(record.handed_over);
    encode_seconds += record.encode_seconds;
    reconstruct_seconds += record.reconstruct_seconds;
    f1.push_back(record.f1);
    em.push_back(record.em);
    const auto length = static_cast<double>(record.kl.size());
    kl_sums.push_back(Mean(record.kl) * length);
    answer_lengths.push_back(length);
    kl.insert(kl.end(), record.kl.begin(), record.kl.end());
    tv.insert(tv.end(), record.tv.begin(), record.tv.end());
    errors.resize(std::max(errors.size(), record.errors.size()));
    for (size_t i = 0; i < record.errors.size(); ++i) errors[i].Add(record.errors[i]);
    for (const Share& share : record.shares) AddShare(share, &shares);
  }
};

absl::Status Cancelled() { return absl::CancelledError("evaluation was interrupted"); }

class Evaluation {
 public:
  Evaluation(const EvaluateJob& job, Device* device, const EvaluateProgress& progress)
      : job_(job), device_(device), progress_(progress) {}

  absl::StatusOr<EvaluateReport> Run() {
    ALUDEL_RETURN_IF_ERROR(Load());
    std::vector<QuestionRecord> records;
    std::unique_ptr<EvaluationLog> log;
    if (!job_.log.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(const std::string description, Describe());
      ALUDEL_ASSIGN_OR_RETURN(log, EvaluationLog::Open(job_.log, description, job_.resume, &records));
    }
    const auto total = static_cast<int64_t>(questions_.size());
    records.resize(std::min(records.size(), questions_.size()));
    for (const QuestionRecord& record : records) ALUDEL_RETURN_IF_ERROR(Add(record));
    for (auto i = static_cast<int64_t>(records.size()); i < total; ++i) {
      if (!progress_("questions", i, total, Scores())) return Cancelled();
      ALUDEL_ASSIGN_OR_RETURN(const QuestionRecord record, AskQuestion(questions_[i]));
      if (log != nullptr) ALUDEL_RETURN_IF_ERROR(log->Append(record));
      ALUDEL_RETURN_IF_ERROR(Add(record));
    }
    progress_("questions", total, total, Scores());
    if (!job_.text.empty()) ALUDEL_RETURN_IF_ERROR(ScoreText());
    return Report();
  }

 private:
  absl::Status Load() {
    TransformerOptions options;
    options.compute = job_.compute;
    options.weights = job_.weights;
    options.max_rows = job_.max_num_batched_tokens;
    ALUDEL_ASSIGN_OR_RETURN(producer_, Transformer::Load(device_, ModelPath::Parse(job_.producer), options));
    ALUDEL_ASSIGN_OR_RETURN(consumer_, Transformer::Load(device_, ModelPath::Parse(job_.consumer), options));
    ALUDEL_ASSIGN_OR_RETURN(questions_, LoadQuestions(job_.qa, job_.questions));
    ALUDEL_ASSIGN_OR_RETURN(PromptWriter writer, PromptWriter::Load(ModelPath::Parse(job_.consumer).base));
    writer_ = std::make_unique<PromptWriter>(std::move(writer));
    ALUDEL_RETURN_IF_ERROR(OpenFormats());
    const int64_t blocks = consumer_->config().max_positions / kBlockTokens + 1;
    ALUDEL_ASSIGN_OR_RETURN(
        producer_pool_,
        BlockPool::Create(device_, producer_->MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
    ALUDEL_ASSIGN_OR_RETURN(
        consumer_pool_,
        BlockPool::Create(device_, consumer_->MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
    ALUDEL_ASSIGN_OR_RETURN(meter_, LayerErrorMeter::Create(*consumer_, *consumer_pool_));
    return absl::OkStatus();
  }

  // What the records of this evaluation depend on, as one line.
  absl::StatusOr<std::string> Describe() const {
    ALUDEL_ASSIGN_OR_RETURN(const std::string qa, ReadFile(job_.qa, kMaxTextBytes));
    std::string manifest;
    if (!job_.codec.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(manifest, ReadFile(job_.codec + "/" + kArtifactManifest, kMaxTextBytes));
    }
    std::vector<std::string> names;
    for (const Contestant& contestant : contestants_) names.push_back(contestant.name);
    return absl::StrFormat(
        "producer %s consumer %s codec %08x questions %08x %s chunk %d answers %d formats %s",
        producer_->hash(), consumer_->hash(), Checksum(manifest), Checksum(qa),
        Name(job_.weights.value_or(FormatOf(job_.compute))), job_.max_num_batched_tokens,
        job_.max_answer_tokens, absl::StrJoin(names, ","));
  }

  static uint32_t Checksum(const std::string& text) {
    return Crc32c(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  }

  absl::Status OpenFormats() {
    ALUDEL_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFormats(job_.codec, consumer_->hash()));
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> controls,
                            ListControls(job_.codec, consumer_->hash()));
    const auto is_control = [&controls](const std::string& name) {
      return std::find(controls.begin(), controls.end(), name) != controls.end();
    };
    const std::vector<std::string> baselines = ListBaselines();
    names.insert(names.end(), baselines.begin(), baselines.end());
    names.insert(names.end(), controls.begin(), controls.end());
    if (job_.formats != "all") names = absl::StrSplit(job_.formats, ',', absl::SkipEmpty());
    if (!job_.codec.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(manifest_, LoadArtifactManifest(job_.codec));
    }
    for (const std::string& name : names) {
      Contestant contestant;
      if (const auto format = manifest_.Find(name); format.ok()) contestant.format = *format;
      if (!is_control(name)) {
        ALUDEL_ASSIGN_OR_RETURN(contestant.encoder,
                                OpenCodec(name, job_.codec, CodecSide::kProducer, *producer_));
      }
      ALUDEL_ASSIGN_OR_RETURN(contestant.decoder,
                              OpenCodec(name, job_.codec, CodecSide::kConsumer, *consumer_));
      contestant.name = contestant.decoder->name();
      contestants_.push_back(std::move(contestant));
    }
    if (contestants_.empty()) return absl::InvalidArgumentError("--formats names no format");
    return absl::OkStatus();
  }

  // What one contestant's encoder made of a prompt.
  struct Encoded {
    std::vector<StoredFrame> frames;
    double bytes = 0;
    double seconds = 0;
  };

  // Encodes tokens [0, tokens) of `ids` once for every contestant that ships anything. [contestants]
  absl::StatusOr<std::vector<Encoded>> EncodeAll(absl::Span<const int32_t> ids, int64_t tokens) {
    std::vector<std::unique_ptr<FrameStore>> stores(contestants_.size());
    std::vector<EncodeTask> tasks;
    std::vector<Encoded> encoded(contestants_.size());
    for (size_t i = 0; i < contestants_.size(); ++i) {
      if (contestants_[i].encoder == nullptr) continue;
      stores[i] = std::make_unique<FrameStore>(*contestants_[i].encoder);
      tasks.push_back({contestants_[i].encoder.get(), stores[i].get(),
                       HandedOver(*contestants_[i].encoder, tokens + 1).end, &encoded[i].seconds});
    }
    ALUDEL_RETURN_IF_ERROR(EncodePrompt(*producer_, *producer_pool_, ids, tokens, absl::MakeSpan(tasks)));
    for (size_t i = 0; i < contestants_.size(); ++i) {
      if (stores[i] == nullptr) continue;
      encoded[i].bytes = static_cast<double>(stores[i]->total_bytes());
      encoded[i].frames = stores[i]->frames();
    }
    return encoded;
  }

  // Fills the cache of tokens [0, tokens), recomputed tokens included. Seconds of everything but the tail.
  absl::StatusOr<double> Reconstruct(const Contestant& contestant, const std::vector<StoredFrame>& frames,
                                     absl::Span<const int32_t> ids, int64_t tokens, const BlockTable& table) {
    const TokenRange range = HandedOver(*contestant.decoder, tokens + 1);
    const KvTarget target{consumer_.get(), consumer_pool_.get(), table.ids(), ids, range.end, range.begin};
    const Clock::time_point start = Clock::now();
    if (range.tokens() > 0) ALUDEL_RETURN_IF_ERROR(ApplyFrames(frames, *contestant.decoder, target));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(*consumer_, *consumer_pool_, table.ids(), ids, range.end, tokens, nullptr, nullptr));
    return seconds;
  }

  std::string Text(const std::vector<int32_t>& tokens) const {
    return AnswerText(writer_->tokenizer().Decode(tokens, /*skip_special_tokens=*/true));
  }

  absl::StatusOr<QuestionRecord> AskQuestion(const Question& question) {
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
    ALUDEL_RETURN_IF_ERROR(meter_->RememberOracle(table.ids(), prompt, oracle));
    QuestionRecord record;
    record.prompt_tokens = static_cast<int64_t>(prompt.size());
    record.f1 = AnswerF1(Text(oracle.tokens), question.answers);
    record.em = AnswerExactMatch(Text(oracle.tokens), question.answers);

    ALUDEL_ASSIGN_OR_RETURN(const std::vector<Encoded> encoded, EncodeAll(prompt, tokens));
    for (size_t i = 0; i < contestants_.size(); ++i) {
      ALUDEL_ASSIGN_OR_RETURN(FormatRecord format, TryFormat(contestants_[i], encoded[i], question, prompt,
                                                             tokens, oracle, table));
      record.formats.push_back(std::move(format));
    }
    return record;
  }

  absl::StatusOr<FormatRecord> TryFormat(const Contestant& contestant, const Encoded& encoded,
                                         const Question& question, const std::vector<int32_t>& prompt,
                                         int64_t tokens, const Answer& oracle, const BlockTable& table) {
    FormatRecord record;
    record.bytes = encoded.bytes;
    record.encode_seconds = encoded.seconds;
    record.shares = SplitBytes(encoded.frames, contestant.format, consumer_->config());
    ALUDEL_ASSIGN_OR_RETURN(record.reconstruct_seconds,
                            Reconstruct(contestant, encoded.frames, prompt, tokens, table));
    const TokenRange range = HandedOver(*contestant.decoder, tokens + 1);
    record.handed_over = range.tokens();
    ALUDEL_ASSIGN_OR_RETURN(record.errors, meter_->Measure(table.ids(), range.begin, range.end));
    ALUDEL_ASSIGN_OR_RETURN(const Divergence divergence,
                            CompareWithOracle(*consumer_, *consumer_pool_, table.ids(), prompt, oracle));
    record.kl = divergence.kl;
    record.tv = divergence.tv;
    ALUDEL_ASSIGN_OR_RETURN(record.answer,
                            AnswerAfterComparison(*consumer_, *consumer_pool_, table.ids(), prompt, oracle,
                                                  divergence, job_.max_answer_tokens));
    record.f1 = AnswerF1(Text(record.answer), question.answers);
    record.em = AnswerExactMatch(Text(record.answer), question.answers);
    return record;
  }

  absl::Status Add(const QuestionRecord& record) {
    if (record.formats.size() != contestants_.size()) {
      return absl::DataLossError(absl::StrFormat("%s: a record holds %d formats, want %d", job_.log,
                                                 record.formats.size(), contestants_.size()));
    }
    oracle_f1_.push_back(record.f1);
    oracle_em_.push_back(record.em);
    prompt_lengths_.push_back(static_cast<double>(record.prompt_tokens));
    for (size_t i = 0; i < contestants_.size(); ++i) contestants_[i].Add(record.formats[i]);
    return absl::OkStatus();
  }

  // Nats of tokens [begin, end) of `ids`, each after all before it; tokens [0, begin - 1) are in the cache.
  absl::Status ScoreTokens(absl::Span<const int32_t> ids, int64_t begin, const BlockTable& table,
                           std::vector<double>* nats) {
    const auto end = static_cast<int64_t>(ids.size());
    std::vector<float> logits;
    const auto vocab = static_cast<size_t>(consumer_->config().vocab);
    for (int64_t at = begin - 1; at + 1 < end;) {
      // One item per token, because each wants its logits; a layer's keys are all written before it attends.
      std::vector<BatchItem> items(std::min({kScoredTogether, consumer_->options().max_rows, end - 1 - at}));
      for (size_t i = 0; i < items.size(); ++i) {
        items[i].ids = ids.subspan(at + static_cast<int64_t>(i), 1);
        items[i].position = at + static_cast<int64_t>(i);
        items[i].blocks = table.ids();
        items[i].wants_logits = true;
      }
      ALUDEL_RETURN_IF_ERROR(consumer_->Forward(absl::MakeSpan(items), *consumer_pool_, &logits));
      for (size_t i = 0; i < items.size(); ++i) {
        nats->push_back(
            NegativeLogProbability(absl::MakeConstSpan(logits).subspan(i * vocab, vocab), ids[++at]));
      }
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
      if (!progress_("text windows", w, windows, "")) return Cancelled();
      const absl::Span<const int32_t> part = absl::MakeConstSpan(ids).subspan(w * window, window);
      const int64_t handed_over = window / 2 - 1;
      BlockTable table;
      ALUDEL_RETURN_IF_ERROR(table.Grow(*consumer_pool_, window));
      ALUDEL_RETURN_IF_ERROR(
          RunTokens(*consumer_, *consumer_pool_, table.ids(), part, 0, handed_over, nullptr, nullptr));
      ALUDEL_RETURN_IF_ERROR(ScoreTokens(part, handed_over + 1, table, &oracle_nats_));
      // Codes of text count neither in bytes nor in speed: those are of the questions.
      ALUDEL_ASSIGN_OR_RETURN(const std::vector<Encoded> encoded, EncodeAll(part, handed_over));
      for (size_t i = 0; i < contestants_.size(); ++i) {
        Contestant& contestant = contestants_[i];
        ALUDEL_RETURN_IF_ERROR(Reconstruct(contestant, encoded[i].frames, part, handed_over, table).status());
        ALUDEL_RETURN_IF_ERROR(ScoreTokens(part, handed_over + 1, table, &contestant.text_nats));
      }
    }
    progress_("text windows", windows, windows, "");
    return absl::OkStatus();
  }

  // F1 so far, of the oracle and the first formats.
  std::string Scores() const {
    constexpr size_t kShown = 3;
    std::string text = absl::StrFormat("F1 oracle %.3f", Mean(oracle_f1_));
    for (size_t i = 0; i < std::min(kShown, contestants_.size()); ++i) {
      absl::StrAppendFormat(&text, ", %s %.3f", contestants_[i].name, Mean(contestants_[i].f1));
    }
    return text;
  }

  // The loss that calibration measured for this consumer; nothing for what is not of preset aludel.
  std::optional<double> ExpectedKl(const ArtifactFormat& format) const {
    if (format.kind != ArtifactKind::kAludel) return std::nullopt;
    for (const ArtifactDecoder& decoder : format.decoders) {
      if (decoder.consumer_hash == consumer_->hash() && decoder.expected.has_value())
        return decoder.expected->kl;
    }
    return std::nullopt;
  }

  std::optional<int> TierOf(const ArtifactFormat& format) const {
    const std::optional<double> own = ExpectedKl(format);
    if (!own.has_value()) return std::nullopt;
    int tier = 0;
    for (const ArtifactFormat& other : manifest_.formats)
      tier += ExpectedKl(other).value_or(0) > *own ? 1 : 0;
    return tier;
  }

  FormatResult Result(const Contestant& c, double raw_bytes) const {
    const double prompt_tokens = Sum(prompt_lengths_);
    FormatResult result;
    result.name = c.name;
    if (c.format != nullptr) {
      result.tier = TierOf(*c.format);
      result.max_kl = c.format->max_kl;
    }
    result.recomputed_tokens = 1 + c.decoder->recomputed_head_tokens() + c.decoder->recomputed_tail_tokens();
    result.recomputed_layers = c.decoder->recomputed_layers();
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
    if (c.encode_seconds > 0) result.encode_tokens_per_s = c.handed_over / c.encode_seconds;
    if (c.reconstruct_seconds > 0) result.reconstruct_tokens_per_s = c.handed_over / c.reconstruct_seconds;
    result.layer_errors = c.errors;
    result.shares = c.shares;
    for (Share& share : result.shares) share.bytes /= prompt_tokens;
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
  ArtifactManifest manifest_;
  std::vector<Contestant> contestants_;
  std::unique_ptr<LayerErrorMeter> meter_;
  std::vector<double> oracle_f1_, oracle_em_, prompt_lengths_, oracle_nats_;
};

}  // namespace

absl::StatusOr<EvaluateReport> Evaluate(const EvaluateJob& job, Device* device,
                                        const EvaluateProgress& progress) {
  return Evaluation(job, device, progress).Run();
}

}  // namespace aludel
