#include "runtime/engine/sampling/random_stream.h"

namespace aludel {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter[0];
    const uint64_t right = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
               static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
    key[0] += 0x9E3779B9;  // golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

double RandomStream::Uniform(uint64_t position) const {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), stream_, 0},
                 {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1.0p-53;
}

}  // namespace aludel
