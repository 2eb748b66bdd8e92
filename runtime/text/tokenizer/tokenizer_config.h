#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace aludel {

inline constexpr int kTokenizerJsonDepth = 16;

// Special tokens that have a name, in the order in which transformers gives ids to new ones.
inline constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

// The token that a config calls `name`: its text, or an object that holds it as `content`.
absl::StatusOr<std::optional<std::string>> NamedToken(const nlohmann::json& config, const char* name,
                                                      const std::string& origin);

// DIRECTORY/tokenizer_config.json as transformers completes it: without added_tokens_decoder, what
// special_tokens_map.json says of special tokens counts first; and what neither names, Llama's classes call
// <s>, </s> and <unk>. An empty object where the directory holds neither file.
absl::StatusOr<nlohmann::json> LoadTokenizerConfig(const std::string& directory);

// Does to a tokenizer.json what transformers does when it loads the tokenizer_config.json beside it:
//
//   added_tokens_decoder       tokens that tokenizer.json lacks are added, and their flags replace its flags.
//                              Ids are what they are: a token that transformers would give another id is
//                              an error.
//   bos_token, ..., mask_token are added where they are no added tokens yet: under the id that the vocabulary
//   additional_special_tokens  gives them, else under the next free one. So are the extra_special_tokens of
//                              newer files.
//   add_bos_token,             Llama's classes make their post-processor of these two where one is given (the
//   add_eos_token              other is then true for BOS, false for EOS). For other classes tokenizer.json
//                              decides, whatever these say; where they contradict it, a warning says so.
//
// InvalidArgument names the field, what was found and what is expected. `origin` is the config's. `warnings`
// gets sentences for the log; it may be null.
absl::Status ApplyTokenizerConfig(const nlohmann::json& config, const std::string& origin,
                                  nlohmann::json* tokenizer, std::vector<std::string>* warnings);

// DIRECTORY/tokenizer.json with what LoadTokenizerConfig() changes of it. NotFound names the tokenizer that
// the directory holds instead, if any.
absl::StatusOr<nlohmann::json> LoadTokenizerJson(const std::string& directory,
                                                 std::vector<std::string>* warnings = nullptr);

}  // namespace aludel
