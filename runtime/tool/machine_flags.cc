#include "runtime/tool/machine_flags.h"

#include "absl/strings/str_cat.h"
#include "kernels/core_list.h"
#include "kernels/device_options.h"
#include "kernels/open_device.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kMaxThreads = 1024;

}  // namespace

void MachineFlags::AddCompute(FlagSet* flags, DType by_default, const std::string& of_what) {
  compute_ = Name(by_default);
  flags->Add("compute", "TYPE", &compute_, absl::StrCat(of_what, ": f32 or bf16").c_str());
}

void MachineFlags::AddWeights(FlagSet* flags) {
  flags->Add("weights", "FORMAT", &weights_,
             "what matrices are rounded to: fp8, int8 or int4; empty: not rounded");
}

void MachineFlags::AddKvDtype(FlagSet* flags, const std::string& of_what) {
  flags->Add("kv-dtype", "TYPE", &kv_dtype_,
             absl::StrCat(of_what, ", as engine.kv_dtype of the servers: bf16, f32 or fp8").c_str());
}

void MachineFlags::AddDevice(FlagSet* flags, const char* help) {
  flags->Add("device", "NAME", &device_, help);
}

void MachineFlags::AddThreads(FlagSet* flags) {
  flags->Add("threads", "N", &threads_, "CPU threads; 0: all allowed cores");
  flags->Add("cores", "LIST", &cores_, "pins them to these cores, e.g. 0-3,8");
}

absl::StatusOr<DType> MachineFlags::Compute() const {
  for (const DType type : {DType::kF32, DType::kBf16}) {
    if (compute_ == Name(type)) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat("--compute is \"", compute_, "\", want f32 or bf16"));
}

absl::StatusOr<std::optional<WeightFormat>> MachineFlags::Weights() const {
  if (weights_.empty()) return std::optional<WeightFormat>();
  const std::optional<WeightFormat> format = ParseWeightFormat(weights_);
  if (format.has_value() && HasScales(*format)) return format;
  return absl::InvalidArgumentError(absl::StrCat("--weights is \"", weights_, "\", want fp8, int8 or int4"));
}

absl::StatusOr<DType> MachineFlags::KvDtype() const {
  for (const DType type : {DType::kBf16, DType::kF32, DType::kFp8}) {
    if (kv_dtype_ == Name(type)) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat("--kv-dtype is \"", kv_dtype_, "\", want bf16, f32 or fp8"));
}

absl::StatusOr<int> MachineFlags::Threads() const {
  if (threads_ >= 0 && threads_ <= kMaxThreads) return static_cast<int>(threads_);
  return absl::InvalidArgumentError(absl::StrCat("--threads is ", threads_, ", want 0 to ", kMaxThreads));
}

absl::StatusOr<std::unique_ptr<Device>> MachineFlags::Open() const {
  DeviceOptions options;
  options.name = device_;
  ALUDEL_ASSIGN_OR_RETURN(options.threads, Threads());
  ALUDEL_ASSIGN_OR_RETURN(options.cores, ParseCoreList(cores_));
  return OpenDevice(options);
}

}  // namespace aludel
