#include "runtime/calibrate/aludel/passage_answers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using FilePointer = std::unique_ptr<FILE, int (*)(FILE*)>;
using Target = std::vector<std::pair<int32_t, float>>;

std::string FileName(const std::string& model_key, absl::Span<const Passage> passages,
                     int max_answer_tokens) {
  std::string key = absl::StrCat("answers 2 ", model_key, " ", max_answer_tokens);
  for (const Passage& passage : passages) {
    absl::StrAppend(&key, "\n", absl::StrJoin(passage.ids, " "), ":", absl::StrJoin(passage.branches, " "));
  }
  return Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()}).substr(0, 24) + ".answers";
}

// Words of 32 bits: per passage the tails, each behind its length, then per token of them its target.
std::vector<int32_t> Flatten(absl::Span<const PassageAnswers> answers) {
  std::vector<int32_t> words;
  for (const PassageAnswers& passage : answers) {
    for (const std::vector<int32_t>& tail : passage.tails) {
      words.push_back(static_cast<int32_t>(tail.size()));
      words.insert(words.end(), tail.begin(), tail.end());
    }
    for (const Target& target : passage.targets) {
      words.push_back(static_cast<int32_t>(target.size()));
      for (const auto& [id, log_probability] : target) {
        words.insert(words.end(), {id, __builtin_bit_cast(int32_t, log_probability)});
      }
    }
  }
  return words;
}

// Takes words one behind the other; false where they end too early.
class WordReader {
 public:
  explicit WordReader(const std::vector<int32_t>& words) : words_(words) {}

  bool Take(size_t count, const int32_t** out) {
    if (count > words_.size() - at_) return false;
    *out = words_.data() + at_;
    at_ += count;
    return true;
  }
  bool TakeCounted(size_t width, int32_t* count, const int32_t** out) {
    const int32_t* head = nullptr;
    if (!Take(1, &head) || *head < 0) return false;
    *count = *head;
    return Take(width * static_cast<size_t>(*count), out);
  }
  bool done() const { return at_ == words_.size(); }

 private:
  const std::vector<int32_t>& words_;
  size_t at_ = 0;
};

bool ReadOne(WordReader& reader, const Passage& passage, PassageAnswers* answers) {
  int32_t count = 0;
  const int32_t* from = nullptr;
  size_t tokens = 0;
  for (size_t b = 0; b < passage.branches.size(); ++b) {
    if (!reader.TakeCounted(1, &count, &from) || count == 0) return false;
    answers->tails.emplace_back(from, from + count);
    tokens += static_cast<size_t>(count);
  }
  for (size_t t = 0; t < tokens; ++t) {
    if (!reader.TakeCounted(2, &count, &from)) return false;
    Target target;
    for (int32_t i = 0; i < count; ++i) {
      target.emplace_back(from[2 * i], __builtin_bit_cast(float, from[2 * i + 1]));
    }
    answers->targets.push_back(std::move(target));
  }
  return true;
}

// Nothing where the file is not there, or not whole.
std::optional<std::vector<PassageAnswers>> ReadFile(const std::string& path,
                                                    absl::Span<const Passage> passages) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  const FilePointer file(error ? nullptr : std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr) return std::nullopt;
  std::vector<int32_t> words(bytes / sizeof(int32_t));
  words.resize(std::fread(words.data(), sizeof(int32_t), words.size(), file.get()));
  std::vector<PassageAnswers> answers(passages.size());
  WordReader reader(words);
  for (size_t p = 0; p < passages.size(); ++p) {
    if (!ReadOne(reader, passages[p], &answers[p])) return std::nullopt;
  }
  if (!reader.done()) return std::nullopt;
  return answers;
}

absl::Status WriteFile(const std::string& path, const std::vector<int32_t>& words) {
  const std::string partial = path + ".partial";
  FilePointer file(std::fopen(partial.c_str(), "wbe"), &std::fclose);
  const bool written = file != nullptr &&
                       std::fwrite(words.data(), sizeof(int32_t), words.size(), file.get()) == words.size() &&
                       std::fclose(file.release()) == 0;
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

Target LikelyTokens(absl::Span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  const double log_sum = top + std::log(sum);
  Target target;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double log_probability = logits[id] - log_sum;
    if (log_probability < std::log(kLeastLikely)) continue;
    target.emplace_back(static_cast<int32_t>(id), static_cast<float>(log_probability));
  }
  return target;
}

// `most`: tokens of an answer.
absl::StatusOr<PassageAnswers> AnswerPassage(CacheGradient& consumer, absl::Span<const float> cache,
                                             const Passage& passage, int most) {
  PassageAnswers answers;
  for (size_t b = 0; b < passage.branches.size(); ++b) {
    answers.tails.push_back({passage.ids[passage.end(b) - 1]});
  }
  const std::vector<int32_t> tail = answers.Tail();
  const std::vector<TailBranch> branches = answers.Branches(passage);
  std::vector<std::vector<Target>> targets(branches.size());
  ALUDEL_ASSIGN_OR_RETURN(const auto said,
                          consumer.Answer({cache, passage.tokens(), tail, branches, passage.trunk()}, most,
                                          [&](size_t branch, absl::Span<const float> logits) {
                                            targets[branch].push_back(LikelyTokens(logits));
                                          }));
  for (size_t b = 0; b < branches.size(); ++b) {
    answers.tails[b].insert(answers.tails[b].end(), said[b].begin(), said[b].end() - 1);
    answers.targets.insert(answers.targets.end(), std::make_move_iterator(targets[b].begin()),
                           std::make_move_iterator(targets[b].end()));
  }
  return answers;
}

}  // namespace

std::vector<int32_t> PassageAnswers::Tail() const {
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& tail : tails) all.insert(all.end(), tail.begin(), tail.end());
  return all;
}

std::vector<TailBranch> PassageAnswers::Branches(const Passage& passage) const {
  std::vector<TailBranch> branches;
  for (size_t b = 0; b < tails.size(); ++b) {
    const int64_t fed = recomputed.empty() ? 0 : recomputed[b];
    branches.push_back({passage.branches[b], passage.end(b) - 1 - fed - passage.branches[b],
                        static_cast<int64_t>(tails[b].size())});
  }
  return branches;
}

void PassageAnswers::RecomputeTails(const Passage& passage, int64_t tokens) {
  ALUDEL_CHECK(recomputed.empty());
  std::vector<Target> all;
  auto next = targets.begin();
  for (size_t b = 0; b < tails.size(); ++b) {
    const int64_t last = passage.end(b) - 1;
    const int64_t fed = std::min(tokens, last - passage.branches[b]);
    recomputed.push_back(fed);
    all.resize(all.size() + static_cast<size_t>(fed));
    for (size_t i = 0; i < tails[b].size(); ++i) all.push_back(std::move(*next++));
    tails[b].insert(tails[b].begin(), passage.ids.begin() + last - fed, passage.ids.begin() + last);
  }
  targets = std::move(all);
}

int64_t PassageAnswers::answered() const {
  return std::count_if(targets.begin(), targets.end(), [](const Target& target) { return !target.empty(); });
}

std::vector<float> PassageAnswers::LogProbabilities(size_t vocab) const {
  std::vector<float> dense(targets.size() * vocab, -std::numeric_limits<float>::infinity());
  for (size_t t = 0; t < targets.size(); ++t) {
    for (const auto& [id, log_probability] : targets[t]) dense[t * vocab + id] = log_probability;
  }
  return dense;
}

std::vector<float> ReadPassage(const StateFile& own, int64_t first_row, int64_t tokens, int64_t columns) {
  std::vector<float> cache(tokens * columns);
  for (int64_t t = 0; t < tokens; ++t) own.Read(first_row + t, 0, columns, cache.data() + t * columns);
  return cache;
}

absl::StatusOr<std::vector<PassageAnswers>> OpenPassageAnswers(
    const std::string& directory, const std::string& model_key, CacheGradient& consumer, const StateFile& own,
    absl::Span<const Passage> passages, int max_answer_tokens, const CalibrationProgress& progress) {
  const std::string path = absl::StrCat(directory, "/", FileName(model_key, passages, max_answer_tokens));
  if (auto known = ReadFile(path, passages); known.has_value()) return *std::move(known);
  std::vector<PassageAnswers> answers;
  int64_t row = 0;
  for (const Passage& passage : passages) {
    if (!progress("", 0, 0)) return absl::CancelledError("calibration was interrupted");
    const std::vector<float> cache = ReadPassage(own, row, passage.tokens(), consumer.columns());
    ALUDEL_ASSIGN_OR_RETURN(PassageAnswers answered,
                            AnswerPassage(consumer, cache, passage, max_answer_tokens));
    answers.push_back(std::move(answered));
    row += passage.tokens();
  }
  ALUDEL_RETURN_IF_ERROR(WriteFile(path, Flatten(answers)));
  return answers;
}

}  // namespace aludel
