#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace aludel {

// Calibration prompts for who has none: pieces of the documentation and program code that this machine has installed.
struct SamplePromptsOptions {
  // Searched with their folders, links aside. Of files, texts are taken (.txt, .md, .rst, README, NEWS, FAQ and licenses,
  // as they are or as .gz) and code (.py, .pm, .h).
  std::vector<std::string> roots;
  int64_t count = 400;  // prompts
  uint64_t seed = 1;
};

// Where Debian keeps them.
std::vector<std::string> SystemTextRoots();

// `count` JSON lines as LoadQuestions reads them: half are questions about a piece of text, a quarter each pieces of text and
// of code. A piece begins with a line and has 300 to 1,600 bytes, of the first MiB of its file; no two overlap. The same files
// and seed give the same lines. NotFound where the roots hold too little.
absl::StatusOr<std::string> SamplePrompts(const SamplePromptsOptions& options);

// Writes them to `file`. AlreadyExists where there is one.
absl::Status WriteSamplePrompts(const SamplePromptsOptions& options, const std::string& file);

}  // namespace aludel
