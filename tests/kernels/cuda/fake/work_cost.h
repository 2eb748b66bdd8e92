#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"

// What work asks of a card, added up from what the fake runtime has counted, and the tables of tests/gpu/README.md that say so.
namespace aludel::cuda::fake {

// What an H200 showed of copies and of matrix products of bf16 (tests/gpu/README.md).
constexpr double kBytesPerUs = 4.3e6;
constexpr double kFlopsPerUs = 794e6;

struct WorkCost {
  int64_t launches = 0;
  int64_t bytes = 0;   // of the card's memory, each operand of a kernel once
  int64_t flops = 0;   // of matrix products and attention
  int64_t copies = 0;  // between host and card
  int64_t waits = 0;   // of the host for the card
  // Of all kernels one after the other, each as long as its bytes or its operations take at these rates: no card is quicker, by
  // what it has shown.
  double kernels_us = 0;

  WorkCost operator+(const WorkCost& other) const {
    return {launches + other.launches, bytes + other.bytes, flops + other.flops,
            copies + other.copies,     waits + other.waits, kernels_us + other.kernels_us};
  }
  WorkCost operator-(const WorkCost& other) const { return *this + other * -1; }
  WorkCost operator*(int64_t times) const {
    return {launches * times, bytes * times, flops * times,
            copies * times,   waits * times, kernels_us * static_cast<double>(times)};
  }
};

// Of what has run since ResetCounts. What each of its kernels moves has to be known.
inline WorkCost CountedWork() {
  const Counts counted = counts();
  WorkCost sum{counted.kernels(), 0, 0, counted.copies, counted.waits};
  for (const auto& [kernel, launches] : counted.launches) {
    EXPECT_EQ(counted.costs.count(kernel), 1) << kernel << ": what it moves is not known";
  }
  for (const auto& [kernel, cost] : counted.costs) {
    sum.bytes += cost.bytes;
    sum.flops += cost.flops;
    sum.kernels_us += std::max(static_cast<double>(cost.bytes) / kBytesPerUs,
                               static_cast<double>(cost.flops) / kFlopsPerUs);
  }
  return sum;
}

// `line` stands in a table of tests/gpu/README.md.
inline void ExpectInReadme(const std::string& line) {
  std::ifstream file("tests/gpu/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  std::printf("%s\n", line.c_str());
  EXPECT_NE(readme.str().find(line + "\n"), std::string::npos)
      << "the table of tests/gpu/README.md is another";
}

}  // namespace aludel::cuda::fake
