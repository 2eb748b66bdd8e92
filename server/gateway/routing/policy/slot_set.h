#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aludel {

// Which servers hold one beginning: small numbers. A conversation's is held by one or two and needs no memory of its own; one
// that more hold is a set of bits from then on. Not thread-safe.
class SlotSet {
 public:
  // It is not there yet.
  void Add(size_t slot) {
    if (bits_.empty() && count_ < kFew) {
      few_[count_++] = static_cast<uint32_t>(slot);
      return;
    }
    if (bits_.empty()) {
      for (const uint32_t held : few_) SetBit(held);
    }
    SetBit(slot);
    ++count_;
  }
  // True where it was there.
  bool Remove(size_t slot) {
    if (bits_.empty()) {
      const auto end = few_.begin() + count_;
      const auto found = std::find(few_.begin(), end, slot);
      if (found == end) return false;
      *found = few_[--count_];
      return true;
    }
    const uint64_t bit = uint64_t{1} << (slot % kWordBits);
    if (slot / kWordBits >= bits_.size() || (bits_[slot / kWordBits] & bit) == 0) return false;
    bits_[slot / kWordBits] &= ~bit;
    --count_;
    return true;
  }
  bool empty() const { return count_ == 0; }

  // Calls `fresh` with those that are not in `seen`, a bit each, and puts them there. It has a word for every slot.
  template <typename Fresh>
  void AddTo(std::vector<uint64_t>* seen, const Fresh& fresh) const {
    if (bits_.empty()) {
      for (uint32_t i = 0; i < count_; ++i) {
        uint64_t& word = (*seen)[few_[i] / kWordBits];
        const uint64_t bit = uint64_t{1} << (few_[i] % kWordBits);
        if ((word & bit) != 0) continue;
        word |= bit;
        fresh(few_[i]);
      }
      return;
    }
    for (size_t word = 0; word < bits_.size(); ++word) {
      uint64_t missing = bits_[word] & ~(*seen)[word];
      (*seen)[word] |= missing;
      for (; missing != 0; missing &= missing - 1) {
        fresh(word * kWordBits + static_cast<size_t>(std::countr_zero(missing)));
      }
    }
  }

  static constexpr size_t kWordBits = 64;

 private:
  static constexpr size_t kFew = 3;

  void SetBit(size_t slot) {
    if (bits_.size() <= slot / kWordBits) bits_.resize(slot / kWordBits + 1);
    bits_[slot / kWordBits] |= uint64_t{1} << (slot % kWordBits);
  }

  std::array<uint32_t, kFew> few_ = {};
  uint32_t count_ = 0;
  std::vector<uint64_t> bits_;  // empty: few_ has them
};

}  // namespace aludel
