#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/adapters/module_pattern.h"

namespace aludel {

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";

// The modules of a model that are no layer's.
inline constexpr absl::string_view kHeadModule = "lm_head";
inline constexpr absl::string_view kEmbeddingModule = "model.embed_tokens";

// The update of one weight: W + scale * B A, with A [rank, inputs] and B [outputs, rank].
struct LoraShape {
  int64_t rank = 0;
  float scale = 0;
};

// The adapter_config.json of a LoRA adapter in PEFT's layout: which modules it updates, with what rank and
// scale. What would change the numbers in another way (DoRA, biases, saved modules, embeddings, ...) is an
// error, and so is a field that is neither known nor empty. Movable; thread-compatible.
class AdapterConfig {
 public:
  // InvalidArgument names `origin` and the field, what was found and what is supported.
  static absl::StatusOr<AdapterConfig> FromJson(absl::string_view json, absl::string_view origin);

  // Whether the adapter updates `module` ("model.layers.0.self_attn.q_proj"). Fails where a pattern takes too
  // many steps.
  absl::StatusOr<bool> Targets(absl::string_view module) const;
  // Of a module that it updates. InvalidArgument where two patterns disagree: PEFT takes the one that
  // comes first, an order that JSON does not keep.
  absl::StatusOr<LoraShape> ShapeOf(absl::string_view module) const;

  // alora_invocation_tokens of an activated adapter (aLoRA): it acts from their last occurrence in a prompt on. Empty:
  // on every token.
  const std::vector<int32_t>& invocation() const { return invocation_; }

  // For people.
  const std::string& base() const { return base_; }  // base_model_name_or_path
  int64_t rank() const { return rank_; }
  double alpha() const { return alpha_; }
  bool rank_stabilized() const { return rank_stabilized_; }
  std::string DescribeTargets() const;

 private:
  // target_modules or exclude_modules.
  struct Selector {
    bool all_linear = false;         // every linear layer, less the head
    std::vector<std::string> names;  // whole names, or their last components
    std::optional<ModulePattern> pattern;
    absl::StatusOr<bool> Matches(absl::string_view module) const;
  };
  template <typename Value>
  using Overrides = std::vector<std::pair<ModulePattern, Value>>;
  class Reader;

  std::string origin_;
  std::string base_;
  int64_t rank_ = 0;
  double alpha_ = 0;
  bool rank_stabilized_ = false;  // use_rslora: scale is alpha / sqrt(rank), not alpha / rank
  Selector targets_;
  Selector excluded_;
  std::vector<int64_t> layers_;  // layers_to_transform; empty: all
  Overrides<int64_t> ranks_;     // rank_pattern
  Overrides<double> alphas_;     // alpha_pattern
  std::vector<int32_t> invocation_;
};

}  // namespace aludel
