#include "server/gateway/openai/model/served_models.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/gateway/openai/model/chat_context.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

absl::Status At(const ServedModelOptions& options, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("model \"", options.name, "\": ", status.message()));
}

void ProtectTurns(ServedModel* model) {
  if (const absl::Status can = CheckBreaking(*model->tokenizer, *model->chat_template); !can.ok()) {
    spdlog::warn(
        "model \"{}\": messages can hold control tokens (special_tokens_in_content: \"control\"): {}",
        model->name, std::string(can.message()));
    return;
  }
  model->special_tokens_as_text = true;
  if (!MarksTurnsBySpecialTokens(*model->tokenizer, *model->chat_template)) {
    spdlog::warn("model \"{}\": its chat template marks turns by plain text, which messages can spell",
                 model->name);
  }
}

}  // namespace

size_t LongestTokenBytes(const Tokenizer& tokenizer) {
  size_t longest = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.IsSpecial(id) ? tokenizer.Decode({id}, false).size()
                                                        : tokenizer.TokenBytes(id).size());
  }
  return longest;
}

namespace {

absl::StatusOr<std::unique_ptr<ServedModel>> LoadOne(const ServedModelOptions& option) {
  auto model = std::make_unique<ServedModel>();
  model->name = option.name;
  std::vector<std::string> warnings;
  auto tokenizer = Tokenizer::Load(option.directory, &warnings);
  if (!tokenizer.ok()) return At(option, tokenizer.status());
  for (const std::string& warning : warnings) spdlog::warn("model \"{}\": {}", option.name, warning);
  model->tokenizer = *std::move(tokenizer);
  model->longest_token_bytes = LongestTokenBytes(*model->tokenizer);
  auto chat_template = ChatTemplate::Load(option.directory);
  if (chat_template.ok()) {
    model->chat_template = *std::move(chat_template);
    model->tool_dialect = DetectToolDialect(model->chat_template->tool_source());
    model->thinking = DetectThinking(model->chat_template->tool_source());
    if (option.special_tokens_as_text) ProtectTurns(model.get());
  } else if (!absl::IsNotFound(chat_template.status())) {
    return At(option, chat_template.status());
  }
  if (option.generation_defaults) {
    auto defaults = GenerationConfig::Load(option.directory);
    if (!defaults.ok()) return At(option, defaults.status());
    model->defaults = *std::move(defaults);
  }
  struct stat info = {};
  if (stat((option.directory + "/tokenizer.json").c_str(), &info) == 0) model->created = info.st_mtime;
  return model;
}

}  // namespace

absl::StatusOr<ServedModels> ServedModels::Load(const std::vector<ServedModelOptions>& options,
                                                const Progress& progress) {
  std::vector<absl::StatusOr<std::unique_ptr<ServedModel>>> loaded(options.size());
  std::atomic<size_t> next = 0;
  const auto load_some = [&] {
    for (size_t at; (at = next.fetch_add(1)) < options.size();) {
      progress(options[at].name, /*loaded=*/false);
      loaded[at] = LoadOne(options[at]);
      if (loaded[at].ok()) progress(options[at].name, /*loaded=*/true);
    }
  };
  std::vector<std::thread> threads;
  // One that waits for a slow disk does not keep the next one from its turn.
  const size_t cores = std::max(2u, std::thread::hardware_concurrency());
  while (threads.size() + 1 < std::min(options.size(), cores)) threads.emplace_back(load_some);
  load_some();
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<ServedModel>> models;
  for (auto& model : loaded) {
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
  }
  return ServedModels(std::move(models));
}

const ServedModel* ServedModels::Find(absl::string_view name) const {
  for (const auto& model : models_) {
    if (model->name == name) return model.get();
  }
  if (base_of_ == nullptr) return nullptr;
  const std::optional<std::string> base = base_of_(std::string(name));
  for (const auto& model : models_) {
    if (base == model->name) return model.get();
  }
  return nullptr;
}

}  // namespace aludel
