#pragma once

#include <cstdio>
#include <cstdlib>

// Included first by builds that have all mutants of a kernel at once (mutants.py): the environment says by number which of
// them is on, and where to list those whose code was reached.
namespace aludel::cuda::simt {

inline const int mutant_on = [] {
  const char* const number = std::getenv("ALUDEL_MUTANT");
  return number == nullptr ? 0 : std::atoi(number);
}();

struct ReachedMutants {
  ~ReachedMutants() {
    const char* const path = std::getenv("ALUDEL_REACHED");
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "w");
    if (file == nullptr) return;
    for (int i = 0; i < ALUDEL_MUTANTS; ++i) {
      if (is[i]) std::fprintf(file, "%d\n", i);
    }
    std::fclose(file);
  }

  bool is[ALUDEL_MUTANTS] = {};
};
inline ReachedMutants reached_mutants;

__attribute__((always_inline)) inline bool MutantIsOn(int number) {
// There it would be a race of its own.
#if !defined(__SANITIZE_THREAD__)
  reached_mutants.is[number] = true;
#endif
  return mutant_on == number;
}

}  // namespace aludel::cuda::simt

#define ALUDEL_MUTANT(number) (::aludel::cuda::simt::MutantIsOn(number))
