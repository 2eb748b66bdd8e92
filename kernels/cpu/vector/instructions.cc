#include "kernels/cpu/vector/instructions.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace aludel::cpu {
namespace {

struct Choice {
  const MicroKernels& kernels;
  bool runs_here;
};

// From the best to the one that always runs.
std::vector<Choice> Choices() {
  std::vector<Choice> choices;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  choices.push_back({Avx512Bf16Kernels(), vnni && __builtin_cpu_supports("avx512bf16")});
  choices.push_back({Avx512VnniKernels(), vnni});
  choices.push_back({Avx512Kernels(), avx512});
  choices.push_back({Avx2Kernels(), avx2});
#endif
  choices.push_back({PortableKernels(), true});
  return choices;
}

}  // namespace

absl::StatusOr<const MicroKernels*> ChooseKernels(const std::string& instructions) {
  std::string names;
  for (const Choice& choice : Choices()) {
    if (instructions.empty() ? choice.runs_here : instructions == choice.kernels.name) {
      if (choice.runs_here) return &choice.kernels;
      return absl::FailedPreconditionError(
          absl::StrCat("this CPU does not have the instructions \"", instructions, "\""));
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", choice.kernels.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("instructions \"", instructions, "\" are not known, want one of ", names));
}

}  // namespace aludel::cpu
