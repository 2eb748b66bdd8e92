#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace aludel {

// Names a model's files: a HuggingFace model directory, and the LoRA adapter (a directory in PEFT's layout)
// that is merged into its weights when they are loaded. Config and tokenizer are always the base's.
struct ModelPath {
  // A directory's path is the path of a model without an adapter.
  ModelPath(std::string base_directory, std::string adapter_directory = "")  // NOLINT: meant as a conversion
      : base(std::move(base_directory)), adapter(std::move(adapter_directory)) {}
  ModelPath(const char* base_directory) : base(base_directory) {}  // NOLINT: likewise

  // As the tools' command lines have it, "BASE" or "BASE+ADAPTER": split at the first '+' between two
  // directories, so that a directory's own name may hold one.
  static ModelPath Parse(absl::string_view text);

  // "BASE+ADAPTER", or "BASE".
  std::string Text() const { return adapter.empty() ? base : base + "+" + adapter; }
  // The last component of both paths: how people name a model.
  std::string Name() const;

  std::string base;
  std::string adapter;  // "": none
};

}  // namespace aludel
