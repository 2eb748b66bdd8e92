#pragma once

#include <array>
#include <cstdint>

namespace aludel {

// Philox4x32 with ten rounds (Salmon, Moraes, Dror and Shaw, SC 2011): 128 random bits from a counter and a
// key, without any state.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Random numbers by position: what a sequence draws for its n-th token depends on its seed, its stream and n,
// and not on its batch or on preemption. Immutable and thread-safe.
class RandomStream {
 public:
  // Streams of one seed are independent: one for each choice of a request.
  RandomStream(uint64_t seed, uint32_t stream) : seed_(seed), stream_(stream) {}
  // In [0, 1), with 53 random bits: the same number on every platform, which std::uniform_real_distribution
  // does not promise.
  double Uniform(uint64_t position) const;

 private:
  uint64_t seed_;
  uint32_t stream_;
};

}  // namespace aludel
