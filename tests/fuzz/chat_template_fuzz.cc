// A chat template over a small conversation.
#include <cstdint>

#include "nlohmann/json.hpp"
#include "runtime/text/chat_template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  static const auto* const kContext = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " s\n"}, {"role": "user", "content": "h\u00e9"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function"}], "add_generation_prompt": true})"));
  const absl::string_view source(reinterpret_cast<const char*>(bytes), size);
  auto chat_template = ChatTemplate::Parse(source, "<s>", "</s>");
  if (chat_template.ok()) (*chat_template)->Render(*kContext).status().IgnoreError();
  return 0;
}
