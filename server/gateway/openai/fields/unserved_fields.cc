#include "server/gateway/openai/fields/unserved_fields.h"

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
    {"structural_tag", kBoth},
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
    {"thinking_token_budget", kPlain, ": use /v1/chat/completions"},
    {"reasoning_effort", kPlain, ": use /v1/chat/completions"},
    {"reasoning_format", kBoth, ": thoughts are 'reasoning_content'", R"(["auto", "deepseek"])"},
    {"include_reasoning", kChat, ": switch it off by 'reasoning_effort'", "[true]", /*zero_asks=*/true},
    // SGLang's
    {"lora_path", kBoth, ": an adapter is a model of its own, see /v1/models"},
    {"session_params", kBoth},
    {"custom_logit_processor", kBoth},
    {"stop_regex", kBoth, ": use 'stop'"},
    {"no_stop_trim", kBoth, ": use 'include_stop_str_in_output'"},
    {"separate_reasoning", kChat, ": thoughts are 'reasoning_content'", "[true]", /*zero_asks=*/true},
    {"return_hidden_states", kBoth},
    // llama.cpp's
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
    {"tfs_z", kBoth, "", "[1.0]"},
    {"t_max_predict_ms", kBoth, ": use 'aludel.timeout_ms'", "[-1]"},
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
