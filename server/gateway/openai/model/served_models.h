#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_template/chat_template.h"
#include "runtime/text/generation_config.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/config/gateway_options.h"
#include "server/gateway/openai/reasoning/thinking.h"
#include "server/gateway/openai/tools/tool_dialect.h"

namespace aludel {

// A model as the gateway needs it: its name, and how text becomes tokens. Immutable and thread-safe.
struct ServedModel {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null: no chat
  bool special_tokens_as_text = false;          // where chat requests spell them (chat_context.h)
  ToolDialect tool_dialect = ToolDialect::kNone;
  Thinking thinking;
  size_t longest_token_bytes = 0;
  GenerationConfig defaults;  // of sampling; empty where the configuration switches them off
  int64_t created = 0;        // unix seconds, of the directory's tokenizer
};

// Of all tokens, as they stand in a text.
size_t LongestTokenBytes(const Tokenizer& tokenizer);

// The models of a configuration, loaded once at start, and the LoRA adapters over them, which come and go. Thread-safe once
// it is told where those are.
class ServedModels {
 public:
  // Called on the threads that load: when a model's turn has come, and when it has been loaded without a fault.
  using Progress = std::function<void(const std::string& model, bool loaded)>;
  // On as many threads as there are cores, two at least. Fails with the name of the first model that has a fault, the
  // file and the fault.
  static absl::StatusOr<ServedModels> Load(
      const std::vector<ServedModelOptions>& options,
      const Progress& progress = [](const std::string&, bool) {});
  explicit ServedModels(std::vector<std::unique_ptr<ServedModel>> models) : models_(std::move(models)) {}

  // Of an adapter's name its base, or nothing. Before the first Find.
  using BaseOf = std::function<std::optional<std::string>(const std::string& adapter)>;
  void FindAdaptersWith(BaseOf base_of) { base_of_ = std::move(base_of); }

  // Of an adapter, the model that it is over; null if there is none. The model stays; an adapter may be
  // gone by the next call.
  const ServedModel* Find(absl::string_view name) const;
  const std::vector<std::unique_ptr<ServedModel>>& all() const { return models_; }

 private:
  std::vector<std::unique_ptr<ServedModel>> models_;
  BaseOf base_of_;  // null: no adapters
};

}  // namespace aludel
