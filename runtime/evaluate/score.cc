#include "runtime/evaluate/score.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/ascii.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace aludel {
namespace {

std::vector<std::string> Words(absl::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || byte >= 0x80) {
      word.push_back(absl::ascii_tolower(byte));
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

double WordF1(const std::vector<std::string>& found, const std::vector<std::string>& wanted) {
  std::map<std::string, int> left;
  for (const std::string& word : wanted) ++left[word];
  double common = 0;
  for (const std::string& word : found) {
    if (left[word]-- > 0) ++common;
  }
  if (common == 0) return found == wanted ? 1.0 : 0.0;
  const double precision = common / static_cast<double>(found.size());
  const double recall = common / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::string AnswerText(const std::string& text) {
  const auto object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return text;
  const auto answer = object.find("answer");
  return answer != object.end() && answer->is_string() ? answer->get<std::string>() : text;
}

double AnswerF1(absl::string_view found, const std::vector<std::string>& answers) {
  double best = 0;
  const std::vector<std::string> words = Words(found);
  for (const std::string& answer : answers) best = std::max(best, WordF1(words, Words(answer)));
  return best;
}

double AnswerExactMatch(absl::string_view found, const std::vector<std::string>& answers) {
  const std::vector<std::string> words = Words(found);
  return std::any_of(answers.begin(), answers.end(),
                     [&words](const std::string& answer) { return Words(answer) == words; });
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::clamp<double>(rank - 1, 0, static_cast<double>(values.size() - 1)))];
}

Interval BootstrapMean(const std::vector<double>& values, const std::vector<double>& weights, uint64_t seed) {
  ALUDEL_CHECK(weights.empty() || weights.size() == values.size());
  if (values.empty()) return {};
  constexpr int kResamples = 2000;
  std::mt19937_64 random(seed);
  std::vector<double> means;
  for (int r = 0; r < kResamples; ++r) {
    double sum = 0;
    double weight = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t pick = random() % values.size();
      sum += values[pick];
      weight += weights.empty() ? 1.0 : weights[pick];
    }
    means.push_back(weight > 0 ? sum / weight : 0);
  }
  return {Percentile(means, 0.025), Percentile(means, 0.975)};
}

}  // namespace aludel
