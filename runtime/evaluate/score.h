#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aludel {

// Answer scores as SQuAD defines them, after lower-casing and turning everything but letters and digits into
// spaces. Bytes beyond ASCII count as letters.

// What of a model's text is scored: the member "answer" where the text is a JSON object that has one as a
// string, else the text itself.
std::string AnswerText(const std::string& text);

// Largest F1 of word overlap over the accepted answers; two answers without words agree.
double AnswerF1(absl::string_view found, const std::vector<std::string>& answers);
// 1 where the words equal those of an accepted answer, else 0.
double AnswerExactMatch(absl::string_view found, const std::vector<std::string>& answers);

struct Interval {
  double low = 0;
  double high = 0;
};

// 95 % percentile interval of the mean of `values`, or of sum(values) / sum(weights) where weights are given,
// resampling items with replacement. Same seed and input: same result.
Interval BootstrapMean(const std::vector<double>& values, const std::vector<double>& weights, uint64_t seed);

double Mean(const std::vector<double>& values);
// Nearest-rank percentile, `fraction` in (0, 1].
double Percentile(std::vector<double> values, double fraction);

}  // namespace aludel
