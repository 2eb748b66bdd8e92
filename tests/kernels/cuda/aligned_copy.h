#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace aludel::cuda {

// Elements at an address as aligned as a device's allocations, and with nothing readable behind them that a
// sanitizer would not notice.
template <typename T>
class AlignedCopy {
 public:
  explicit AlignedCopy(const std::vector<T>& elements)
      : memory_(static_cast<T*>(std::aligned_alloc(64, (elements.size() * sizeof(T) + 63) / 64 * 64)),
                std::free) {
    std::copy(elements.begin(), elements.end(), memory_.get());
  }
  T* data() const { return memory_.get(); }

 private:
  std::unique_ptr<T, decltype(&std::free)> memory_;
};

}  // namespace aludel::cuda
