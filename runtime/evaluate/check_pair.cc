#include "runtime/evaluate/check_pair.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/model_identity.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {
namespace {

bool HasTokenizer(const ModelPath& model) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(model.base, "/tokenizer.json"), error);
}

}  // namespace

absl::StatusOr<ModelConfig> CheckPair(const ModelPath& producer, const ModelPath& consumer) {
  const bool tokenizers = HasTokenizer(producer) && HasTokenizer(consumer);
  ModelConfig config;
  const auto identify = [&](const ModelPath& model) -> absl::StatusOr<ModelIdentity> {
    ALUDEL_ASSIGN_OR_RETURN(config, ModelConfig::Load(model.base));
    TokenizerIdentity identity;
    if (tokenizers) {
      ALUDEL_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(model.base));
      identity = {tokenizer->fingerprint(), tokenizer->vocabulary_fingerprint()};
    }
    return IdentityOf(config, /*weights_hash=*/"", identity, /*rope_length=*/0);
  };
  ALUDEL_ASSIGN_OR_RETURN(const ModelIdentity to, identify(consumer));
  ALUDEL_ASSIGN_OR_RETURN(const ModelIdentity from, identify(producer));
  const std::vector<std::string> reasons = WhyNoPair(from, to);
  if (!reasons.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the cache of ", producer.Text(), " is of no use to ",
                                                      consumer.Text(), ": ", absl::StrJoin(reasons, ", ")));
  }
  config.max_positions = std::min(from.max_positions, to.max_positions);
  return config;
}

}  // namespace aludel
