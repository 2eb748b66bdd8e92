#include "runtime/evaluate/evaluation_tally.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/evaluate/allocation.h"
#include "runtime/evaluate/score.h"

namespace aludel {
namespace {

double Sum(const std::vector<double>& values) { return Mean(values) * static_cast<double>(values.size()); }

}  // namespace

EvaluationTally::EvaluationTally(std::vector<std::string> formats, uint64_t seed) : seed_(seed) {
  for (std::string& name : formats) formats_.push_back({.name = std::move(name)});
}

void EvaluationTally::Format::Add(const FormatRecord& record) {
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

void EvaluationTally::Add(const QuestionRecord& record) {
  ALUDEL_CHECK(record.formats.size() == formats_.size());
  oracle_f1_.push_back(record.f1);
  oracle_em_.push_back(record.em);
  prompt_lengths_.push_back(static_cast<double>(record.prompt_tokens));
  local_seconds_ += record.local_seconds;
  producer_seconds_ += record.producer_seconds;
  for (size_t i = 0; i < formats_.size(); ++i) formats_[i].Add(record.formats[i]);
}

std::string EvaluationTally::Scores() const {
  constexpr size_t kShown = 3;
  std::string text = absl::StrFormat("F1 oracle %.3f", Mean(oracle_f1_));
  for (size_t i = 0; i < std::min(kShown, formats_.size()); ++i) {
    absl::StrAppendFormat(&text, ", %s %.3f", formats_[i].name, Mean(formats_[i].f1));
  }
  return text;
}

FormatResult EvaluationTally::Result(const Format& format, double prompt_tokens, double raw_bytes) const {
  FormatResult result;
  result.name = format.name;
  result.bytes_per_token = format.bytes / prompt_tokens;
  result.bytes_vs_raw = format.bytes / raw_bytes;
  result.f1 = Mean(format.f1);
  result.f1_ci95 = BootstrapMean(format.f1, {}, seed_);
  std::vector<double> loss = oracle_f1_;
  for (size_t i = 0; i < loss.size(); ++i) loss[i] -= format.f1[i];
  result.f1_loss_ci95 = BootstrapMean(loss, {}, seed_);
  result.em = Mean(format.em);
  result.kl = Mean(format.kl);
  result.kl_ci95 = BootstrapMean(format.kl_sums, format.answer_lengths, seed_);
  result.kl_p95 = Percentile(format.kl, 0.95);
  result.tv = Mean(format.tv);
  if (format.encode_seconds > 0) result.encode_tokens_per_s = format.handed_over / format.encode_seconds;
  if (format.reconstruct_seconds > 0) {
    result.reconstruct_tokens_per_s = format.handed_over / format.reconstruct_seconds;
  }
  result.layer_errors = format.errors;
  result.shares = format.shares;
  for (Share& share : result.shares) share.bytes /= prompt_tokens;
  return result;
}

void EvaluationTally::Fill(double raw_bytes_per_token, EvaluateReport* report) const {
  const double prompt_tokens = Sum(prompt_lengths_);
  report->prompt_tokens = static_cast<int64_t>(prompt_tokens + 0.5);
  report->answer_tokens = static_cast<int64_t>(formats_.front().kl.size());
  report->oracle_f1 = Mean(oracle_f1_);
  report->oracle_f1_ci95 = BootstrapMean(oracle_f1_, {}, seed_);
  report->oracle_em = Mean(oracle_em_);
  if (local_seconds_ > 0) report->local_tokens_per_s = prompt_tokens / local_seconds_;
  if (producer_seconds_ > 0) report->producer_tokens_per_s = prompt_tokens / producer_seconds_;
  report->formats.clear();
  for (const Format& format : formats_) {
    report->formats.push_back(Result(format, prompt_tokens, prompt_tokens * raw_bytes_per_token));
  }
}

}  // namespace aludel
