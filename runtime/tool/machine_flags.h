#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"
#include "runtime/tool/flag_set.h"

namespace aludel {

// The flags of tools that compute: in which type, where, on how many threads and on which cores. A tool adds
// those that it takes; the others keep their defaults. Must outlive the FlagSet's Parse.
class MachineFlags {
 public:
  void AddCompute(FlagSet* flags, DType by_default, const std::string& of_what);  // --compute
  void AddWeights(FlagSet* flags);                                                // --weights
  void AddKvDtype(FlagSet* flags, const std::string& of_what);                    // --kv-dtype
  void AddDevice(FlagSet* flags, const char* help = "cpu or cuda:N");             // --device
  void AddThreads(FlagSet* flags);                                                // --threads, --cores

  // InvalidArgument for another type than f32 and bf16.
  absl::StatusOr<DType> Compute() const;
  // Fp8, int8, int4 or nothing. InvalidArgument for another format.
  absl::StatusOr<std::optional<WeightFormat>> Weights() const;
  // InvalidArgument for another type than f32, bf16 and fp8.
  absl::StatusOr<DType> KvDtype() const;
  const std::string& device() const { return device_; }
  // 0: all allowed cores. InvalidArgument below.
  absl::StatusOr<int> Threads() const;
  absl::StatusOr<std::unique_ptr<Device>> Open() const;

 private:
  std::string compute_ = Name(DType::kBf16);
  std::string weights_;
  std::string kv_dtype_ = Name(DType::kBf16);
  std::string device_ = "cpu";
  std::string cores_;
  int64_t threads_ = 0;
};

}  // namespace aludel
