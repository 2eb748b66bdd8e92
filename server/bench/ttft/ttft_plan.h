#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/model_config.h"

namespace aludel {

// "256,512": positive numbers of tokens, ascending and each once in the result. InvalidArgument names --lengths.
absl::StatusOr<std::vector<int64_t>> ParseLengths(absl::string_view list);

// "10M,2.5G,none": bits per second with k, M or G; none is 0. In the order given. InvalidArgument names --links.
absl::StatusOr<std::vector<double>> ParseLinks(absl::string_view list);

// InvalidArgument unless the longest prompt and one token fit into what both models can hold.
absl::Status CheckLengths(const std::vector<int64_t>& lengths, const ModelConfig& producer,
                          const ModelConfig& consumer);

// One artifact and the formats to measure with it: servers load one.
struct TtftSetup {
  std::string artifact;  // directory; "": none
  std::vector<std::string> formats;
};

// Which formats are measured with which of `artifacts`, each once. `formats` empty: all that the artifacts
// hold, and raw. Formats that need no artifact, and the planner, go with the first. InvalidArgument names a
// format that no artifact has, and lists those that there are.
absl::StatusOr<std::vector<TtftSetup>> PlanSetups(const std::vector<std::string>& artifacts,
                                                  const std::vector<std::string>& formats);

// Prompts that no server has seen: token ids, random, or cut out of a text at random places behind eight
// random ids, which keep prefix caches and stores from knowing any of it.
class TtftPrompts {
 public:
  // `text` holds token ids; empty: random prompts. Ids of special tokens, which are the first and last ones
  // of a vocabulary, are not drawn.
  TtftPrompts(int64_t vocab, std::vector<int32_t> text, uint64_t seed);
  std::vector<int32_t> Next(int64_t tokens);

 private:
  int32_t Draw();

  const int64_t vocab_;
  const std::vector<int32_t> text_;
  std::mt19937_64 random_;
};

}  // namespace aludel
