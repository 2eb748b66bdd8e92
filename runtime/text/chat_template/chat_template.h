#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// A HuggingFace chat template (the Jinja subset that published Llama-3, Qwen2.5, Qwen3 and Mistral templates
// use), parsed once; with the one named "tool_use" where a model keeps a template of its own for requests
// with tools. Immutable and thread-safe. Rendering is bounded (loop steps, output bytes), because templates
// come from foreign files.
class ChatTemplate {
 public:
  // Reads chat_template of DIR/tokenizer_config.json (one, or a list of named ones), or in its place
  // DIR/chat_template.jinja and DIR/additional_chat_templates/tool_use.jinja; with its special tokens.
  // NotFound where the model has none.
  // Special tokens that the directory does not name are those of `base`, another directory; "": none.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const std::string& directory,
                                                            const std::string& base = "");
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source, std::string bos_token,
                                                             std::string eos_token);
  virtual ~ChatTemplate() = default;

  // `context` holds messages, add_generation_prompt, tools, documents and whatever else the caller passes;
  // bos_token and eos_token are added. InvalidArgument carries the template's raise_exception text or the
  // line of the fault, or says that the model has a template for contexts with tools only.
  virtual absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const = 0;
  // The template of contexts with tools, as it was given.
  virtual const std::string& tool_source() const = 0;
};

}  // namespace aludel
