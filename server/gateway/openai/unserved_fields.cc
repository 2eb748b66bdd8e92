#include "server/gateway/openai/unserved_fields.h"

#include "nlohmann/json.hpp"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int kChat = static_cast<int>(Endpoint::kChat);
constexpr int kPlain = static_cast<int>(Endpoint::kPlain);
constexpr int kBoth = kChat | kPlain;

struct Unserved {
  const char* name;
  int endpoints;
  const char* instead = "";  // ends the message
  const char* off = "[]";    // JSON: values that ask for nothing, as null, false, 0 and empty ones do ...
  bool zero_asks = false;    // ... unless false and 0 ask for something here
};

constexpr Unserved kUnserved[] = {
    // OpenAI's
    {"functions", kChat, ": use 'tools'"},
    {"function_call", kChat, ": use 'tool_choice'", R"(["none", "auto"])"},
    {"modalities", kChat, ": only text is served", R"([["text"]])"},
    {"audio", kChat, ": only text is served"},
    {"prediction", kChat},
    {"web_search_options", kChat},
    // A hint that no served model would take: OpenAI, too, refuses it where a model has no effort to vary.
    {"reasoning_effort", kChat, ": see 'chat_template_kwargs' for what the model's template knows",
     R"(["none"])"},
    {"verbosity", kChat, "", R"(["medium"])"},
    {"echo", kChat},
    {"suffix", kPlain},
    // Of the other endpoint
    {"messages", kPlain, ": use /v1/chat/completions"},
    {"tools", kPlain, ": use /v1/chat/completions"},
    {"max_completion_tokens", kPlain, ": use 'max_tokens'"},
    {"top_logprobs", kPlain, ": use 'logprobs'"},
    {"chat_template_kwargs", kPlain, ": use /v1/chat/completions"},
    // vLLM's
    {"logits_processors", kBoth},
    {"guided_json", kBoth, ": use 'response_format'"},
    {"guided_regex", kBoth},
    {"guided_choice", kBoth, ": use 'response_format' with an enum"},
    {"guided_grammar", kBoth},
    {"structural_tag", kBoth},
    {"structured_outputs", kBoth, ": use 'response_format'"},
    {"use_beam_search", kBoth},
    {"length_penalty", kBoth, "", "[1.0]"},
    {"early_stopping", kBoth},
    {"chat_template", kChat, ": the model's own is used"},
    {"documents", kChat, ": use 'chat_template_kwargs'"},
    {"add_special_tokens", kChat, ": the template writes them"},
    {"add_special_tokens", kPlain, ": give token ids", "[true]", /*zero_asks=*/true},
    {"skip_special_tokens", kBoth, "", "[true]", /*zero_asks=*/true},
    {"prompt_embeds", kBoth},
    {"return_tokens_as_token_ids", kBoth},
    {"kv_transfer_params", kBoth, ": the servers plan handoffs themselves, see 'aludel'"},
    {"thinking_token_budget", kBoth},
    // SGLang's
    {"regex", kBoth, ": use 'response_format'"},
    {"ebnf", kBoth, ": use 'response_format'"},
    {"lora_path", kBoth, ": an adapter is a model of its own, see /v1/models"},
    {"session_params", kBoth},
    {"custom_logit_processor", kBoth},
    {"stop_regex", kBoth, ": use 'stop'"},
    // llama.cpp's
    {"grammar", kBoth, ": use 'response_format'"},
    {"json_schema", kBoth, ": use 'response_format'"},
    {"n_predict", kBoth, ": use 'max_tokens'", "[-1]"},
    {"n_probs", kBoth, ": use 'logprobs'"},
    {"repeat_penalty", kBoth, ": use 'repetition_penalty'", "[1.0]"},
    {"typical_p", kBoth, "", "[1.0]"},
    {"top_n_sigma", kBoth, "", "[-1.0]"},
    {"dynatemp_range", kBoth},
    {"mirostat", kBoth},
    {"dry_multiplier", kBoth},
    {"xtc_probability", kBoth},
    {"samplers", kBoth},
    {"lora", kBoth, ": an adapter is a model of its own, see /v1/models"},
};

bool AsksForNothing(const Unserved& field, const ordered_json& value) {
  for (const ordered_json& off : ordered_json::parse(field.off)) {
    if (value == off) return true;
  }
  if (value == false || value == 0) return !field.zero_asks;
  return value == "" || (value.is_structured() && value.empty());
}

}  // namespace

void RefuseUnserved(JsonFields& fields, Endpoint endpoint) {
  for (const Unserved& field : kUnserved) {
    if ((field.endpoints & static_cast<int>(endpoint)) == 0) continue;
    const ordered_json* value = fields.Find(field.name);
    if (value != nullptr && !AsksForNothing(field, *value)) fields.Refuse(field.name, nullptr, field.instead);
  }
}

}  // namespace aludel
