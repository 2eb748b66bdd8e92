#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/evaluate/allocation.h"
#include "runtime/evaluate/layer_error.h"

namespace aludel {

// What one format has shown on one question.
struct FormatRecord {
  std::vector<int32_t> answer;  // greedy, the end token last where the model came to it
  double f1 = 0;
  double em = 0;
  std::vector<double> kl, tv;  // per token of the oracle's answer
  double bytes = 0;            // headers included
  int64_t handed_over = 0;     // tokens
  double encode_seconds = 0;
  double reconstruct_seconds = 0;
  std::vector<LayerError> errors;  // per layer
  std::vector<Share> shares;       // of the bytes
};

struct QuestionRecord {
  int64_t prompt_tokens = 0;
  double f1 = 0;  // of the oracle, as is em
  double em = 0;
  std::vector<int32_t> answer;        // the oracle's, as a format's
  double local_seconds = 0;           // of the consumer's prefill of the prompt
  double producer_seconds = 0;        // of the producer's, encoding not counted
  std::vector<FormatRecord> formats;  // in the order of the evaluation's list
};

// Every question's record as it is made, one JSON line each, so that an interrupted evaluation goes on where
// it stopped and gives the same report. The first line describes the evaluation; records of another one
// are refused.
class EvaluationLog {
 public:
  // With `resume`, `records` gets what the file holds (an unfinished last line is cut off), and an existing
  // file that describes another evaluation is FailedPrecondition. Without, the file starts anew.
  // `description` is one line of text.
  static absl::StatusOr<std::unique_ptr<EvaluationLog>> Open(const std::string& path,
                                                             const std::string& description, bool resume,
                                                             std::vector<QuestionRecord>* records);

  absl::Status Append(const QuestionRecord& record);

 private:
  struct Closer {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  EvaluationLog(std::string path, FILE* file) : path_(std::move(path)), file_(file) {}
  absl::Status WriteLine(const std::string& line);

  std::string path_;
  std::unique_ptr<FILE, Closer> file_;
};

}  // namespace aludel
