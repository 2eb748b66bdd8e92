#pragma once

#include "absl/strings/string_view.h"

namespace aludel {

// How a family of models writes down the calls it wants made:
//   kHermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them, text around
//     (Hermes, Qwen2.5, Qwen3)
//   kLlama: {"name": ..., "parameters": {...}} as the whole answer, several apart by ';' (Llama 3.1 and
//   later) kMistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...] to the end of the answer
enum class ToolDialect { kNone, kHermes, kLlama, kMistral };

// What a chat template teaches its model, told from its text (ChatTemplate::tool_source()): it must speak of
// `tools`, and of "[TOOL_CALLS]" (Mistral), "<tool_call>" (Hermes) or "parameters" (Llama), looked for in
// this order.
ToolDialect DetectToolDialect(absl::string_view chat_template);

}  // namespace aludel
