#include "runtime/inspect/inspect_model.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/inspect/inspect_adapter.h"
#include "runtime/model/model_identity.h"
#include "runtime/model/transformer.h"
#include "runtime/model/transformer_options.h"
#include "runtime/model/weights/weights.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/chat_template.h"
#include "runtime/text/generation_config.h"
#include "runtime/text/tokenizer/added_tokens.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/tokenizer/tokenizer_config.h"

namespace aludel {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kDefaultPlanContext = 8192;

ordered_json DescribeModel(const std::string& directory, const ModelConfig& config) {
  ordered_json model = {{"directory", directory},
                        {"architecture", config.architecture},
                        {"parameters", CountParameters(config)},
                        {"layers", config.layers},
                        {"hidden", config.hidden},
                        {"heads", config.heads},
                        {"kv_heads", config.kv_heads},
                        {"head_dim", config.head_dim},
                        {"feed_forward", config.ffn},
                        {"vocabulary", config.vocab},
                        {"context_tokens", config.max_positions},
                        {"rope", DescribeRope(config, 0)}};
  if (config.sliding_window > 0) model["sliding_window_tokens"] = config.sliding_window;
  model["tied_embeddings"] = config.tied_embeddings;
  model["quantization"] = Name(config.quantization.method);
  return model;
}

ordered_json DescribeWeights(const ModelFiles& files) {
  int64_t bytes = 0;
  for (const auto& file : files.files()) bytes += static_cast<int64_t>(file->size());
  if (files.adapter() != nullptr) bytes -= static_cast<int64_t>(files.adapter()->file().size());
  std::map<std::string, std::pair<int64_t, int64_t>> by_type;  // tensors, bytes
  for (const auto& [name, entry] : files.entries()) {
    auto& [tensors, tensor_bytes] = by_type[entry->dtype];
    ++tensors;
    tensor_bytes += static_cast<int64_t>(entry->data.size());
  }
  ordered_json types = ordered_json::array();
  for (const auto& [dtype, counts] : by_type) {
    types.push_back({{"dtype", dtype}, {"tensors", counts.first}, {"bytes", counts.second}});
  }
  return {{"files", files.files().size() - (files.adapter() != nullptr ? 1 : 0)},
          {"bytes", bytes},
          {"types", types}};
}

ordered_json DescribeTokenizer(const std::string& directory, const ModelConfig& config,
                               ordered_json* problems) {
  std::vector<std::string> notes;
  const auto tokenizer = Tokenizer::Load(directory, &notes);
  if (!tokenizer.ok()) {
    problems->push_back(std::string(tokenizer.status().message()));
    return {{"loads", false}};
  }
  ordered_json result = {
      {"loads", true}, {"ids", (*tokenizer)->vocab_size()}, {"fingerprint", (*tokenizer)->fingerprint()}};
  if ((*tokenizer)->vocab_size() > config.vocab) {
    notes.push_back(
        absl::StrCat("ids from ", config.vocab, " on have no embedding: prompts that hold them are refused"));
  }
  if (!notes.empty()) result["note"] = absl::StrJoin(notes, "; ");
  return result;
}

ordered_json PlanMemory(const ModelConfig& config, const MemoryPlanOptions& options) {
  const int64_t context =
      options.context > 0 ? options.context : std::min(config.max_positions, kDefaultPlanContext);
  const KvLayout block{config.layers, config.kv_heads, config.head_dim, 16, 1, options.kv_dtype};
  TransformerOptions transformer;
  transformer.compute = options.compute;
  transformer.weights = options.weights;
  const int64_t blocks = options.concurrency * block.BlocksFor(context);
  const int64_t weights = LoadedBytes(config, options.compute, transformer.weight_format());
  const auto workspace = static_cast<int64_t>(Transformer::WorkspaceBytes(config, transformer));
  const int64_t cache = blocks * static_cast<int64_t>(block.total_bytes());
  const int64_t machine = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const int64_t total = weights + workspace + cache;
  return {{"compute", Name(options.compute)},
          {"weights", Name(transformer.weight_format())},
          {"concurrency", options.concurrency},
          {"context_tokens", context},
          {"kv_blocks", blocks},
          {"weights_bytes", weights},
          {"workspace_bytes", workspace},
          {"kv_cache_bytes", cache},
          {"total_bytes", total},
          {"machine_bytes", machine},
          {"fits_this_machine", total <= machine}};
}

std::string Quote(const std::string& token) {
  return json(token).dump(-1, ' ', true, json::error_handler_t::replace);
}

// `model` of a tokenizer.json that loads: ids of the vocabulary by spelling, and merges as "left right".
struct Vocabulary {
  std::map<std::string, int64_t> ids;
  std::vector<std::string> merges;
};

Vocabulary ReadVocabulary(const json& tokenizer) {
  Vocabulary result;
  const json& model = tokenizer["model"];
  for (const auto& [token, id] : model["vocab"].items()) result.ids[token] = id.get<int64_t>();
  for (const json& merge : model["merges"]) {
    result.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                              : absl::StrJoin(merge.get<std::vector<std::string>>(), " "));
  }
  return result;
}

// Where two vocabularies part, for people; fingerprints only say that they do.
std::string ExplainVocabularies(const Vocabulary& theirs, const Vocabulary& ours) {
  int64_t missing = 0, moved = 0, more = 0;
  std::string example;
  for (const auto& [token, id] : ours.ids) {
    const auto found = theirs.ids.find(token);
    if (found != theirs.ids.end() && found->second == id) continue;
    ++(found == theirs.ids.end() ? missing : moved);
    if (example.empty()) {
      example = absl::StrCat(Quote(token), " is ",
                             found == theirs.ids.end() ? "missing" : absl::StrCat("id ", found->second),
                             ", want id ", id);
    }
  }
  for (const auto& [token, id] : theirs.ids) more += ours.ids.count(token) == 0 ? 1 : 0;
  if (missing + moved + more > 0) {
    return absl::StrCat("of ", ours.ids.size(), " tokens of the consumer ", missing, " are missing and ",
                        moved, " have other ids in the producer, which has ", more, " of its own",
                        example.empty() ? "" : absl::StrCat("; e.g. ", example));
  }
  const size_t both = std::min(theirs.merges.size(), ours.merges.size());
  size_t first = 0;
  while (first < both && theirs.merges[first] == ours.merges[first]) ++first;
  if (first < both) {
    return absl::StrCat("the tokens agree, but merge ", first, " is ", Quote(theirs.merges[first]), ", want ",
                        Quote(ours.merges[first]));
  }
  return absl::StrCat("the tokens agree, but there are ", theirs.merges.size(), " merges, want ",
                      ours.merges.size());
}

std::string DescribeAdded(const AddedToken* token) {
  return token == nullptr ? "no added token" : Quote(token->content);
}

// What added tokens of a pair differ in, which keeps no pair apart; empty where they agree.
std::string CompareAddedTokens(const std::vector<AddedToken>& theirs, const std::vector<AddedToken>& ours) {
  struct Pair {
    const AddedToken* producer = nullptr;
    const AddedToken* consumer = nullptr;
  };
  std::map<int32_t, Pair> by_id;
  for (const AddedToken& token : theirs) by_id[token.id].producer = &token;
  for (const AddedToken& token : ours) by_id[token.id].consumer = &token;
  int64_t different = 0;
  std::string first;
  for (const auto& [id, pair] : by_id) {
    if (pair.producer != nullptr && pair.consumer != nullptr && *pair.producer == *pair.consumer) continue;
    if (++different > 1) continue;
    const std::string producer = DescribeAdded(pair.producer), consumer = DescribeAdded(pair.consumer);
    first = producer == consumer
                ? absl::StrCat("id ", id, ", whose flags differ: ", consumer)
                : absl::StrCat("id ", id, ": ", producer, " in the producer, ", consumer, " in the consumer");
  }
  if (different == 0) return "";
  return absl::StrCat("added tokens differ: ", different, ", the first is ", first,
                      "; prompts are made with the consumer's, and the producer sees ids only");
}

std::string DescribeWindow(int64_t tokens) { return tokens == 0 ? "none" : absl::StrCat(tokens, " tokens"); }

struct Side {
  ModelConfig config;
  ModelIdentity identity;
  Vocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
};

absl::StatusOr<Side> ReadSide(const ModelPath& path) {
  const std::string& directory = path.base;
  Side side;
  ALUDEL_ASSIGN_OR_RETURN(side.config, ModelConfig::Load(directory));
  if (!path.adapter.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
    ALUDEL_RETURN_IF_ERROR(CheckWeights(files, side.config));
  }
  ALUDEL_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(directory));
  side.identity =
      IdentityOf(side.config, "", {tokenizer->fingerprint(), tokenizer->vocabulary_fingerprint()}, 0);
  ALUDEL_ASSIGN_OR_RETURN(const json root, LoadTokenizerJson(directory));
  side.vocabulary = ReadVocabulary(root);
  ALUDEL_ASSIGN_OR_RETURN(side.added_tokens,
                          ReadAddedTokens(root.contains("added_tokens") ? &root["added_tokens"] : nullptr,
                                          absl::StrCat(directory, "/tokenizer.json: added_tokens")));
  return side;
}

ordered_json DescribeSide(const ModelPath& path, const Side& side) {
  return {{"directory", path.Text()},
          {"architecture", side.identity.architecture},
          {"layers", side.identity.layers},
          {"kv_heads", side.identity.kv_heads},
          {"head_dim", side.identity.head_dim},
          {"rope", side.identity.rope},
          {"tokenizer", side.identity.tokenizer_fingerprint},
          {"vocabulary", side.identity.vocabulary_fingerprint},
          {"context_tokens", side.identity.max_positions}};
}

}  // namespace

absl::StatusOr<ordered_json> InspectModel(const ModelPath& path, const MemoryPlanOptions& options) {
  const std::string& directory = path.base;
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(directory));
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
  ordered_json problems = ordered_json::array();
  const absl::Status weights = CheckWeights(files, config);
  if (!weights.ok()) problems.push_back(std::string(weights.message()));
  // What the gateway reads beside the tokenizer, and does not start without.
  for (const absl::Status& status :
       {ChatTemplate::Load(directory).status(), GenerationConfig::Load(directory).status()}) {
    if (!status.ok() && !absl::IsNotFound(status)) problems.push_back(std::string(status.message()));
  }
  const KvLayout token{config.layers, config.kv_heads, config.head_dim, 1, 1, options.kv_dtype};
  ordered_json report;
  report["model"] = DescribeModel(directory, config);
  report["weights"] = DescribeWeights(files);
  if (files.adapter() != nullptr) report["adapter"] = DescribeAdapter(*files.adapter());
  report["tokenizer"] = DescribeTokenizer(directory, config, &problems);
  report["kv_cache"] = {{"dtype", Name(token.dtype)}, {"bytes_per_token", token.bytes_per_token()}};
  report["memory_plan"] = PlanMemory(config, options);
  report["problems"] = problems;
  return report;
}

absl::StatusOr<ordered_json> InspectPair(const ModelPath& producer_path, const ModelPath& consumer_path) {
  ALUDEL_ASSIGN_OR_RETURN(const Side producer, ReadSide(producer_path));
  ALUDEL_ASSIGN_OR_RETURN(const Side consumer, ReadSide(consumer_path));
  const std::vector<std::string> reasons = WhyNoPair(producer.identity, consumer.identity);
  ordered_json report;
  report["producer"] = DescribeSide(producer_path, producer);
  report["consumer"] = DescribeSide(consumer_path, consumer);
  report["fits"] = reasons.empty();
  report["problems"] = reasons;
  if (producer.identity.vocabulary_fingerprint != consumer.identity.vocabulary_fingerprint) {
    report["vocabularies"] = ExplainVocabularies(producer.vocabulary, consumer.vocabulary);
  }
  std::vector<std::string> notes;
  if (std::string tokens = CompareAddedTokens(producer.added_tokens, consumer.added_tokens);
      !tokens.empty()) {
    notes.push_back(std::move(tokens));
  }
  if (producer.config.max_positions < consumer.config.max_positions) {
    notes.push_back(absl::StrCat("prompts beyond the producer's ", producer.config.max_positions,
                                 " tokens are prefilled by the consumer itself"));
  }
  if (const std::string ropes = CompareRopes(producer.identity, consumer.identity); !ropes.empty()) {
    notes.push_back(absl::StrCat(ropes,
                                 ", which rotates what it gets by its own: calibration measures "
                                 "whether the two caches resemble each other"));
  }
  const int64_t theirs = producer.config.sliding_window, ours = consumer.config.sliding_window;
  if (theirs != ours) {
    const int64_t smaller = theirs == 0 || (ours != 0 && ours < theirs) ? ours : theirs;
    notes.push_back(absl::StrCat(
        "the sliding window is ", DescribeWindow(theirs), " in the producer and ", DescribeWindow(ours),
        " in the consumer: calibrate with prompts of more than ", smaller, " tokens if you serve such"));
  }
  if (!notes.empty()) report["note"] = absl::StrJoin(notes, "; ");
  return report;
}

}  // namespace aludel
