#include "runtime/files/foreign_files.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {
namespace {

// Files are told by how their names begin and end.
struct Kind {
  absl::string_view prefix;
  absl::string_view suffix;
  absl::string_view advice;
};

constexpr absl::string_view kPickle =
    "PyTorch's pickle format, which is not read: load it with transformers and save_pretrained(), which "
    "writes "
    "safetensors";
constexpr absl::string_view kOwnLayout =
    "its publisher's own layout, which is not read: fetch the files that transformers loads";

constexpr Kind kWeights[] = {
    {"adapter_model", "",
     "an adapter (LoRA): name it beside its base model (engine { adapter: ... }, or BASE+ADAPTER for the "
     "tools)"},
    {"pytorch_model", ".bin.index.json", kPickle},
    {"pytorch_model", ".bin", kPickle},
    {"", ".gguf", "llama.cpp's format, which is not read: fetch the safetensors that it was made from"},
    {"consolidated", ".safetensors", kOwnLayout},
    {"consolidated", ".pth", kOwnLayout},
    {"tf_model", ".h5", "TensorFlow's, which is not read: convert it to safetensors"},
    {"flax_model", ".msgpack", "Flax's, which is not read: convert it to safetensors"},
    {"model-", ".safetensors",
     "one of several files: model.safetensors.index.json, which lists them, is missing"},
    {"", ".safetensors",
     "not the name that transformers looks for: a whole model is called model.safetensors"},
};

constexpr absl::string_view kConvert =
    "not read: load it with transformers' AutoTokenizer and save_pretrained(), which writes tokenizer.json";
constexpr Kind kTokenizers[] = {
    {"tokenizer.model", "", kConvert}, {"tekken.json", "", kConvert}, {"spiece.model", "", kConvert},
    {"vocab.json", "", kConvert},      {"", ".tiktoken", kConvert},
};

std::string FirstOf(const std::string& directory, absl::Span<const Kind> kinds) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    names.insert(at->path().filename().string());
  }
  for (const Kind& kind : kinds) {
    for (const std::string& name : names) {
      if (!absl::StartsWith(name, kind.prefix) || !absl::EndsWith(name, kind.suffix)) continue;
      return absl::StrCat("; ", name, " is ", kind.advice);
    }
  }
  return "";
}

}  // namespace

std::string ForeignWeights(const std::string& directory) { return FirstOf(directory, kWeights); }

std::string ForeignTokenizer(const std::string& directory) { return FirstOf(directory, kTokenizers); }

}  // namespace aludel
