#pragma once

#include <utility>

#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/micro_kernels.h"
#include "kernels/ops.h"

namespace aludel::cpu {

// Weights in the panels of micro_kernels.h, one layout for one row and for a thousand.
class CpuPackedMatrix final : public PackedMatrix {
 public:
  CpuPackedMatrix(HostMemory memory, int64_t out, int64_t in, DType dtype)
      : memory_(std::move(memory)), out_(out), in_(in), dtype_(dtype) {}

  static int64_t PaddedIn(int64_t in) { return (in + kInBlock - 1) / kInBlock * kInBlock; }
  static int64_t Panels(int64_t out) { return (out + kPanelCols - 1) / kPanelCols; }
  static size_t Bytes(int64_t out, int64_t in, DType dtype) {
    return static_cast<size_t>(Panels(out) * kPanelCols * PaddedIn(in)) * SizeOf(dtype);
  }

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  DType dtype() const override { return dtype_; }
  int64_t row_block() const override { return kPanelCols; }

  int64_t panels() const { return Panels(out_); }
  int64_t padded_in() const { return PaddedIn(in_); }
  size_t panel_bytes() const { return static_cast<size_t>(padded_in() * kPanelCols) * SizeOf(dtype_); }
  void* data() const { return memory_.get(); }
  char* panel(int64_t index) const { return static_cast<char*>(memory_.get()) + index * panel_bytes(); }

 private:
  HostMemory memory_;
  int64_t out_;
  int64_t in_;
  DType dtype_;
};

}  // namespace aludel::cpu
