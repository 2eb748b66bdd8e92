#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/evaluation_log.h"

namespace aludel {

// From the records of questions to the figures of a report: sums, means and their intervals. Knows no model
// and no artifact. Not thread-safe.
class EvaluationTally {
 public:
  // `formats`: their names, in the order of every record; `seed` of the bootstrap.
  EvaluationTally(std::vector<std::string> formats, uint64_t seed);

  // The record holds as many formats.
  void Add(const QuestionRecord& record);
  // Tokens of every question's prompt.
  const std::vector<double>& prompt_lengths() const { return prompt_lengths_; }
  // F1 so far, of the oracle and the first formats.
  std::string Scores() const;
  // Sets the oracle's figures, and those of each format that follow from the records; `raw_bytes_per_token` is
  // a figure of the model, without headers. At least one format.
  void Fill(double raw_bytes_per_token, EvaluateReport* report) const;

 private:
  struct Format {
    std::string name;
    double bytes = 0;
    double handed_over = 0;  // tokens
    double encode_seconds = 0;
    double reconstruct_seconds = 0;
    std::vector<double> f1, em;                   // per question
    std::vector<double> kl_sums, answer_lengths;  // per question
    std::vector<double> kl, tv;                   // per answer token
    std::vector<LayerError> errors;               // per layer
    std::vector<Share> shares;

    void Add(const FormatRecord& record);
  };
  FormatResult Result(const Format& format, double prompt_tokens, double raw_bytes) const;

  const uint64_t seed_;
  std::vector<Format> formats_;
  std::vector<double> oracle_f1_, oracle_em_, prompt_lengths_;
  double local_seconds_ = 0, producer_seconds_ = 0;
};

}  // namespace aludel
