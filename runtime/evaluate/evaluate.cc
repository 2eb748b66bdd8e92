#include "runtime/evaluate/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/compute_share.h"
#include "runtime/evaluate/evaluation_log.h"
#include "runtime/evaluate/evaluation_tally.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/evaluate/pair_under_test.h"
#include "runtime/evaluate/questions.h"
#include "runtime/evaluate/text_perplexity.h"
#include "runtime/evaluate/upgrade_meter.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;
constexpr size_t kMaxFileBytes = size_t{1} << 30;

constexpr size_t kMaxShownBytes = 600;  // of an example's prompt

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of a long text its end, from a character's first byte.
std::string EndOf(const std::string& text) {
  if (text.size() <= kMaxShownBytes) return text;
  size_t begin = text.size() - kMaxShownBytes;
  while (begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) ++begin;
  return "\u2026 " + text.substr(begin);
}

uint32_t Checksum(const std::string& text) {
  return Crc32c(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

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
      ALUDEL_ASSIGN_OR_RETURN(const std::string description, DescribeJob());
      ALUDEL_ASSIGN_OR_RETURN(log, EvaluationLog::Open(job_.log, description, job_.resume, &records));
    }
    const auto total = static_cast<int64_t>(questions_.size());
    records.resize(std::min(records.size(), questions_.size()));
    for (size_t i = 0; i < records.size(); ++i) ALUDEL_RETURN_IF_ERROR(Add(i, records[i]));
    for (auto i = static_cast<int64_t>(records.size()); i < total; ++i) {
      if (!progress_("questions", i, total, tally_->Scores())) return Cancelled();
      ALUDEL_ASSIGN_OR_RETURN(const QuestionRecord record, AskQuestion(questions_[i]));
      if (log != nullptr) ALUDEL_RETURN_IF_ERROR(log->Append(record));
      ALUDEL_RETURN_IF_ERROR(Add(i, record));
    }
    progress_("questions", total, total, tally_->Scores());
    ALUDEL_RETURN_IF_ERROR(ScoreTexts());
    return Report();
  }

 private:
  absl::Status Load() {
    ALUDEL_ASSIGN_OR_RETURN(questions_, LoadQuestions(job_.qa, job_.questions));
    for (size_t i = 0; i < questions_.size(); ++i) {
      if (questions_[i].text.empty()) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "--qa %s: entry %d is a text without a question; texts are measured by --text", job_.qa, i + 1));
    }
    ALUDEL_ASSIGN_OR_RETURN(pair_, PairUnderTest::Load(job_, device_));
    std::vector<std::string> names;
    for (const FormatUnderTest& format : pair_->formats()) names.push_back(format.name);
    tally_.emplace(std::move(names), job_.seed);
    ppl_.resize(pair_->formats().size());
    ALUDEL_RETURN_IF_ERROR(CheckUpgrades());
    LeaveOut();
    if (questions_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--qa ", job_.qa, ": none of its prompts fits the model"));
    }
    ALUDEL_ASSIGN_OR_RETURN(
        meter_, LayerErrorMeter::Create(pair_->oracle(), pair_->oracle_pool(), pair_->tested_pool()));
    return absl::OkStatus();
  }

  // What would else be found out after all questions.
  absl::Status CheckUpgrades() const {
    if (job_.upgrade_after.empty()) return absl::OkStatus();
    if (job_.unrounded_oracle) {
      return absl::InvalidArgumentError(
          "--upgrade-after compares with the consumer as --weights has it: leave out --unrounded-oracle");
    }
    if (job_.texts.empty()) {
      return absl::InvalidArgumentError("--upgrade-after is measured on texts: --text names none");
    }
    return FindUpgradePairs(*pair_).status();
  }

  // Of captured traffic some is at the end of what the model holds; and nothing says what was wanted.
  void LeaveOut() {
    const auto room = pair_->consumer().config().max_positions - job_.max_answer_tokens;
    const size_t all = questions_.size();
    std::erase_if(questions_, [&](const Question& question) {
      const auto tokens = static_cast<int64_t>(question.ids.size());
      return tokens > 0 && (tokens < 2 || tokens > room);
    });
    if (questions_.size() < all) {
      std::fprintf(stderr,
                   "--qa %s: %zu prompts of ids are left out, too short or too long for the model and an "
                   "answer of %d tokens\n",
                   job_.qa.c_str(), all - questions_.size(), static_cast<int>(job_.max_answer_tokens));
    }
    const auto open = std::count_if(questions_.begin(), questions_.end(),
                                    [](const Question& question) { return question.answers.empty(); });
    if (open > 0) {
      std::fprintf(
          stderr,
          "--qa %s: %d of %zu prompts say no answer that is wanted: F1 and exact match count them as wrong\n",
          job_.qa.c_str(), static_cast<int>(open), questions_.size());
    }
  }

  // What the records of this evaluation depend on, as one line.
  absl::StatusOr<std::string> DescribeJob() const {
    ALUDEL_ASSIGN_OR_RETURN(const std::string qa, ReadFile(job_.qa, kMaxFileBytes));
    std::string manifest;
    if (!job_.codec.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(manifest,
                              ReadFile(pair_->manifest().directory + "/" + kArtifactManifest, kMaxFileBytes));
    }
    std::vector<std::string> names;
    for (const FormatUnderTest& format : pair_->formats()) names.push_back(format.name);
    return absl::StrFormat(
        "records 2 producer %s consumer %s codec %08x questions %08x %s%s chunk %d answers %d formats %s",
        pair_->producer().hash(), pair_->consumer().hash(), Checksum(manifest), Checksum(qa),
        Name(job_.weights.value_or(FormatOf(job_.compute))),
        absl::StrCat(job_.unrounded_oracle ? " unrounded oracle" : "",
                     job_.kv_dtype == DType::kBf16 ? "" : absl::StrCat(" cache ", Name(job_.kv_dtype))),
        job_.max_num_batched_tokens, job_.max_answer_tokens, absl::StrJoin(names, ","));
  }

  std::string Text(const std::vector<int32_t>& tokens) const {
    return AnswerText(pair_->writer().tokenizer().Decode(tokens, /*skip_special_tokens=*/true));
  }

  absl::StatusOr<QuestionRecord> AskQuestion(const Question& question) {
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, pair_->writer().Write(question));
    const int64_t tokens = static_cast<int64_t>(prompt.size()) - 1;
    const int64_t room = tokens + 1 + job_.max_answer_tokens;
    if (tokens < 1 || room > pair_->consumer().config().max_positions) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: a prompt has %d tokens; with an answer of %d the model holds %d", job_.qa,
                          prompt.size(), job_.max_answer_tokens, pair_->consumer().config().max_positions));
    }
    ALUDEL_ASSIGN_OR_RETURN(const PairUnderTest::Tables tables, pair_->Reserve(room));
    const absl::Span<const BlockId> own = tables.oracle.ids();
    QuestionRecord record;
    const Clock::time_point begin = Clock::now();
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(pair_->oracle(), pair_->oracle_pool(), own, prompt, 0, tokens, nullptr, nullptr));
    record.local_seconds = SecondsSince(begin);
    ALUDEL_ASSIGN_OR_RETURN(const Answer oracle, AnswerGreedily(pair_->oracle(), pair_->oracle_pool(), own,
                                                                prompt, job_.max_answer_tokens));
    ALUDEL_RETURN_IF_ERROR(meter_->RememberOracle(own, prompt, oracle));
    record.answer = oracle.tokens;
    record.prompt_tokens = static_cast<int64_t>(prompt.size());
    record.f1 = AnswerF1(Text(oracle.tokens), question.answers);
    record.em = AnswerExactMatch(Text(oracle.tokens), question.answers);

    const Clock::time_point produced = Clock::now();
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<EncodedPrompt> encoded, pair_->EncodeAll(prompt, tokens));
    record.producer_seconds = SecondsSince(produced);
    for (const EncodedPrompt& one : encoded) record.producer_seconds -= one.seconds;
    for (size_t i = 0; i < encoded.size(); ++i) {
      ALUDEL_ASSIGN_OR_RETURN(FormatRecord shown, TryFormat(pair_->formats()[i], encoded[i], question, prompt,
                                                            tokens, oracle, tables.tested));
      record.formats.push_back(std::move(shown));
    }
    return record;
  }

  absl::StatusOr<FormatRecord> TryFormat(const FormatUnderTest& format, const EncodedPrompt& encoded,
                                         const Question& question, const std::vector<int32_t>& prompt,
                                         int64_t tokens, const Answer& oracle, const BlockTable& table) {
    FormatRecord record;
    record.bytes = encoded.bytes;
    record.encode_seconds = encoded.seconds;
    record.shares = SplitBytes(encoded.frames, format.format, pair_->consumer().config());
    ALUDEL_ASSIGN_OR_RETURN(record.reconstruct_seconds,
                            pair_->Reconstruct(format, encoded.frames, prompt, tokens, table));
    const TokenRange range = HandedOver(format.decoder->spec(), tokens + 1);
    record.handed_over = range.tokens();
    ALUDEL_ASSIGN_OR_RETURN(record.errors, meter_->Measure(table.ids(), range.begin, range.end));
    ALUDEL_ASSIGN_OR_RETURN(
        const Divergence divergence,
        CompareWithOracle(pair_->consumer(), pair_->tested_pool(), table.ids(), prompt, oracle));
    record.kl = divergence.kl;
    record.tv = divergence.tv;
    ALUDEL_ASSIGN_OR_RETURN(
        record.answer, AnswerAfterComparison(pair_->consumer(), pair_->tested_pool(), table.ids(), prompt,
                                             oracle, divergence, job_.max_answer_tokens));
    record.f1 = AnswerF1(Text(record.answer), question.answers);
    record.em = AnswerExactMatch(Text(record.answer), question.answers);
    return record;
  }

  absl::Status Add(size_t question, const QuestionRecord& record) {
    if (record.formats.size() != pair_->formats().size()) {
      return absl::DataLossError(absl::StrFormat("%s: a record holds %d formats, want %d", job_.log,
                                                 record.formats.size(), pair_->formats().size()));
    }
    tally_->Add(record);
    Show(question, record);
    return absl::OkStatus();
  }

  void Show(size_t question, const QuestionRecord& record) {
    const auto plain = [&](const std::vector<int32_t>& tokens) {
      return pair_->writer().tokenizer().Decode(tokens, /*skip_special_tokens=*/true);
    };
    const Question& asked = questions_[question];
    Example example{.number = static_cast<int64_t>(question) + 1,
                    .prompt = EndOf(asked.ids.empty() ? asked.Message() : plain(asked.ids)),
                    .oracle = plain(record.answer),
                    .oracle_f1 = record.f1};
    for (const FormatRecord& format : record.formats) {
      example.formats.push_back({plain(format.answer), format.f1, Mean(format.kl)});
    }
    examples_.push_back(std::move(example));
  }

  // Those on which some format is furthest from the oracle.
  std::vector<Example> MostDifferent() const {
    const auto distance = [](const Example& example) {
      double most = 0;
      for (const Example::Shown& shown : example.formats) most = std::max(most, shown.kl);
      return most;
    };
    std::vector<Example> sorted = examples_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const Example& a, const Example& b) { return distance(a) > distance(b); });
    sorted.resize(std::min(sorted.size(), kMaxExamples));
    return sorted;
  }

  absl::Status ScoreTexts() {
    for (const std::string& file : job_.texts) {
      ALUDEL_ASSIGN_OR_RETURN(const auto windows,
                              CutWindows(*pair_, file, job_.text_windows, job_.window_tokens));
      ALUDEL_ASSIGN_OR_RETURN(TextNats nats, ScoreText(*pair_, file, windows, progress_));
      texts_.push_back({std::filesystem::path(file).filename().string(), std::exp(Mean(nats.oracle))});
      for (size_t i = 0; i < ppl_.size(); ++i) ppl_[i].push_back(std::exp(Mean(nats.formats[i])));
      if (job_.upgrade_after.empty()) continue;
      ALUDEL_ASSIGN_OR_RETURN(std::vector<UpgradeResult> upgrades,
                              MeasureUpgrades(*pair_, windows, job_.upgrade_after, job_.seed, progress_));
      for (UpgradeResult& result : upgrades) {
        result.text = texts_.back().name;
        upgrades_.push_back(std::move(result));
      }
    }
    return absl::OkStatus();
  }

  // The loss that calibration measured for this consumer; nothing for what is not of preset aludel.
  std::optional<double> ExpectedKl(const ArtifactFormat& format) const {
    if (format.kind != ArtifactKind::kAludel) return std::nullopt;
    for (const ArtifactDecoder& decoder : format.decoders) {
      if (decoder.consumer_hash == pair_->consumer().hash() && decoder.expected.has_value()) {
        return decoder.expected->kl;
      }
    }
    return std::nullopt;
  }

  std::optional<int> TierOf(const ArtifactFormat& format) const {
    const std::optional<double> own = ExpectedKl(format);
    if (!own.has_value()) return std::nullopt;
    int tier = 0;
    for (const ArtifactFormat& other : pair_->manifest().formats) {
      tier += ExpectedKl(other).value_or(0) > *own ? 1 : 0;
    }
    return tier;
  }

  // What the pair and the artifact say of a format, beside its figures.
  void Describe(const FormatUnderTest& format, FormatResult* result) const {
    const CodecSpec& spec = format.decoder->spec();
    if (format.format != nullptr) {
      result->tier = TierOf(*format.format);
      result->max_kl = format.format->max_kl;
    }
    result->recomputed_tokens = 1 + spec.recomputed_head_tokens + spec.recomputed_tail_tokens;
    result->recomputed_layers = spec.recomputed_layers;
    result->consumer_compute_share =
        MeanComputeShare(pair_->consumer().config(), *format.decoder, tally_->prompt_lengths());
  }

  EvaluateReport Report() const {
    EvaluateReport report;
    report.producer = job_.producer;
    report.consumer = job_.consumer;
    report.producer_hash = pair_->producer().hash();
    report.consumer_hash = pair_->consumer().hash();
    report.compute = Name(job_.compute);
    report.kv_dtype = Name(job_.kv_dtype);
    report.questions = static_cast<int64_t>(questions_.size());
    report.texts = texts_;
    report.upgrades = upgrades_;
    report.examples = MostDifferent();
    const KvLayout layout = pair_->consumer().MakeKvLayout(1, kBlockTokens, DType::kBf16);
    tally_->Fill(static_cast<double>(layout.bytes_per_token()), &report);
    for (size_t i = 0; i < report.formats.size(); ++i) {
      Describe(pair_->formats()[i], &report.formats[i]);
      report.formats[i].ppl = ppl_[i];
    }
    return report;
  }

  const EvaluateJob& job_;
  Device* device_;
  const EvaluateProgress& progress_;
  std::vector<Question> questions_;
  std::unique_ptr<PairUnderTest> pair_;
  std::optional<EvaluationTally> tally_;
  std::unique_ptr<LayerErrorMeter> meter_;
  std::vector<Example> examples_;  // of all questions
  std::vector<TextResult> texts_;
  std::vector<std::vector<double>> ppl_;  // [formats][texts]
  std::vector<UpgradeResult> upgrades_;
};

}  // namespace

absl::StatusOr<EvaluateReport> Evaluate(const EvaluateJob& job, Device* device,
                                        const EvaluateProgress& progress) {
  return Evaluation(job, device, progress).Run();
}

}  // namespace aludel
