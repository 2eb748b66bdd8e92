#include <limits>

#include "tests/kernels/cuda/races.h"
#include "tests/kernels/cuda/simt_block.h"

namespace aludel::cuda {

// It comes to memory in each block anew, see HideCounted.
void StoreCounted(float* to, float value, uint32_t* counter) {
  const simt::Unseen record;
  simt::current->counted[counter].emplace_back(to, value);
  *to = std::numeric_limits<float>::quiet_NaN();
  ++*counter;
}

void AwaitCount(const uint32_t* counter, uint32_t count) {
  if (*counter != count) {
    simt::Fail("waits for ever for a count of " + std::to_string(count) + ", which is " +
               std::to_string(*counter));
  }
  for (const auto& [to, value] : simt::current->counted[counter]) {
    *to = value;
    simt::Writes4(to);
  }
}

namespace simt {

void HideCounted() {
  for (const auto& [counter, stores] : current->counted) {
    for (const auto& [to, value] : stores) *to = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace simt
}  // namespace aludel::cuda
