#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace aludel {

inline constexpr int kTokenizerJsonDepth = 16;

// Does to a tokenizer.json what transformers does when it loads the tokenizer_config.json beside it:
//
//   added_tokens_decoder  tokens that tokenizer.json lacks are added, and their flags replace its flags. Ids
//   are
//                         what they are: a token that transformers would give another id is an error.
//   add_bos_token,        Llama's classes make their post-processor of these two where one is given (the
//   other add_eos_token         is then true for BOS, false for EOS). Other classes leave them out in
//   transformers 4 and
//                         obey them in 5: contradicting tokenizer.json is an error there.
//
// InvalidArgument names the field, what was found and what is expected. `origin` is the config's.
absl::Status ApplyTokenizerConfig(const nlohmann::json& config, const std::string& origin,
                                  nlohmann::json* tokenizer);

// DIRECTORY/tokenizer.json with what DIRECTORY/tokenizer_config.json, where present, changes of it. NotFound
// names the tokenizer that the directory holds instead, if any.
absl::StatusOr<nlohmann::json> LoadTokenizerJson(const std::string& directory);

}  // namespace aludel
