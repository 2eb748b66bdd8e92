#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "runtime/offline/flag_set.h"

namespace aludel {

// The flags of tools that compute: in which type, where, and on how many threads. A tool adds those that it
// takes; the others keep their defaults. Must outlive the FlagSet's Parse.
class MachineFlags {
 public:
  void AddCompute(FlagSet* flags, DType by_default, const std::string& of_what);  // --compute
  void AddDevice(FlagSet* flags);                                                 // --device
  void AddThreads(FlagSet* flags);                                                // --threads

  // InvalidArgument for another type than f32 and bf16.
  absl::StatusOr<DType> Compute() const;
  const std::string& device() const { return device_; }
  // 0: all allowed cores. InvalidArgument below.
  absl::StatusOr<int> Threads() const;
  absl::StatusOr<std::unique_ptr<Device>> Open() const;

 private:
  std::string compute_ = Name(DType::kBf16);
  std::string device_ = "cpu";
  int64_t threads_ = 0;
};

}  // namespace aludel
