#pragma once

#include <utility>

#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/vector/micro_kernels.h"
#include "kernels/ops.h"

namespace aludel::cpu {

static_assert(kInBlock == kScaleInputs);

// Weights in the panels of micro_kernels.h, one layout for one row and for a thousand.
class CpuPackedMatrix final : public PackedMatrix {
 public:
  CpuPackedMatrix(HostMemory memory, int64_t out, int64_t in, WeightFormat format)
      : memory_(std::move(memory)), out_(out), in_(in), format_(format) {}

  static int64_t PaddedIn(int64_t in) { return (in + kInBlock - 1) / kInBlock * kInBlock; }
  static int64_t Panels(int64_t out) { return (out + kPanelCols - 1) / kPanelCols; }
  static size_t PanelBytes(int64_t in, WeightFormat format) {
    const int64_t blocks = PaddedIn(in) / kInBlock;
    switch (format) {
      case WeightFormat::kF32:
        return blocks * kInBlock * kPanelCols * sizeof(float);
      case WeightFormat::kBf16:
        return blocks * kInBlock * kPanelCols * sizeof(Bf16);
      case WeightFormat::kInt8:
        return blocks * kInt8BlockBytes;
      case WeightFormat::kInt4:
        return blocks * kInt4BlockBytes;
      case WeightFormat::kFp8:
        break;  // CpuFp8Matrix
    }
    return 0;
  }
  static size_t Bytes(int64_t out, int64_t in, WeightFormat format) {
    return Panels(out) * PanelBytes(in, format);
  }

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  WeightFormat format() const override { return format_; }
  int64_t row_block() const override { return kPanelCols; }

  int64_t panels() const { return Panels(out_); }
  int64_t padded_in() const { return PaddedIn(in_); }
  int64_t in_blocks() const { return padded_in() / kInBlock; }
  size_t panel_bytes() const { return PanelBytes(in_, format_); }
  void* data() const { return memory_.get(); }
  char* panel(int64_t index) const { return static_cast<char*>(memory_.get()) + index * panel_bytes(); }

 private:
  HostMemory memory_;
  int64_t out_;
  int64_t in_;
  WeightFormat format_;
};

}  // namespace aludel::cpu
