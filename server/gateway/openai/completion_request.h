#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/reasoning/thinking.h"
#include "server/gateway/openai/tools/tools.h"

namespace aludel {

// Of one request. As many tokens as the prompts may have together are computed in minutes.
inline constexpr size_t kMaxPrompts = 256;
inline constexpr size_t kMaxPromptChoices = 1024;
inline constexpr size_t kMaxPromptTokens = size_t{1} << 20;

// A prompt of /v1/completions: a text, or token ids.
struct PlainPrompt {
  std::string text;
  std::vector<int32_t> ids;  // empty: the text is meant
};

// What a client asked for at /v1/chat/completions or /v1/completions, checked as far as no model is needed.
struct CompletionRequest {
  bool chat = true;
  std::string prompt_param = "messages";  // what the client calls its prompt, for errors that are found later
  std::string model;
  // Chat: as chat_messages.h makes them.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  Tools tools;
  nlohmann::ordered_json template_arguments = nlohmann::ordered_json::object();  // chat_template_kwargs
  std::vector<PlainPrompt> prompts;  // plain completion: one at least
  bool echo = false;                 // plain: the answer begins with its prompt
  std::optional<int>
      prompt_logprobs;  // of each prompt token, with so many others; sampling's covers an echo's, too
  v1::SamplingParams sampling;
  std::vector<std::string>
      bad_words;                 // that the answer must not hold; the model's tokenizer makes them sampling's
  std::string max_tokens_param;  // the name by which the client gave max_tokens; "": it did not
  bool max_tokens_yields =
      false;  // to the end of the context, where the API has clients name a length in any case
  std::optional<v1::TextConstraint> constraint;  // of response_format, or of a field in its place
  std::string format_name;                       // the name of response_format's schema
  std::string format_param = "response_format";  // what the client calls that field
  ThinkingWish thinking;                         // chat
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;                          // of the prompt and the answer
  bool continue_final_message = false;                    // chat: the last message goes on, no new one begins
  std::string continue_param = "continue_final_message";  // what says so
  std::optional<int64_t>
      truncate_prompt_tokens;  // only the prompt's last ones are used; -1: what the context holds
  v1::Fidelity fidelity = v1::FIDELITY_UNSPECIFIED;
  std::string format;
  std::optional<int64_t> max_staleness_ms;
  bool trace = false;            // the answer tells of its plan's alternatives and of its frames
  int priority = 0;              // lower goes first
  std::string cache_salt;        // of the client's own, beside its key's; "": none
  std::string prompt_cache_key;  // requests of one go to the same decode server; "": none
  bool no_store = false;         // nothing of it is kept in caches of prefixes
  bool no_capture = false;       // nothing of it is kept for calibration
  std::optional<v1::Workflow> workflow;
  absl::Duration timeout = absl::InfiniteDuration();  // the client's own limit
};

// Reads a request body as OpenAI's API defines it. Null is absence. Fields that cannot change the answer
// ("user", "metadata", unknown ones) are ignored; fields that would and that we do not serve are an error
// that names the parameter. Nothing for success.
std::optional<ApiError> ParseChatRequest(absl::string_view body, CompletionRequest* request);
std::optional<ApiError> ReadChatRequest(const nlohmann::ordered_json& object, CompletionRequest* request);
std::optional<ApiError> ParseCompletionRequest(absl::string_view body, CompletionRequest* request);

// What those two take, as a JSON schema, by their own code.
nlohmann::ordered_json DescribeCompletionBody(bool chat);

// What every API's dialect reads with the same names: the model, sampling, "stream", "priority", "cache_salt",
// "prompt_cache_key", "aludel". A fault is left in `fields`.
void ParseCommon(JsonFields& fields, CompletionRequest* request);
// The longest answer, by the name that the API has for it.
void ParseMaxTokens(JsonFields& fields, const char* name, CompletionRequest* request);

// A body that is one JSON object. The error names what is wrong with it, e.g. a key that is there twice.
std::optional<ApiError> ParseObject(absl::string_view body, nlohmann::ordered_json* object);

}  // namespace aludel
