#include "runtime/offline/machine_flags.h"

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kMaxThreads = 1024;

}  // namespace

void MachineFlags::AddCompute(FlagSet* flags, DType by_default, const std::string& of_what) {
  compute_ = Name(by_default);
  flags->Add("compute", "TYPE", &compute_, absl::StrCat(of_what, ": f32 or bf16").c_str());
}

void MachineFlags::AddDevice(FlagSet* flags) { flags->Add("device", "NAME", &device_, "cpu or cuda:N"); }

void MachineFlags::AddThreads(FlagSet* flags) {
  flags->Add("threads", "N", &threads_, "CPU threads; 0: all allowed cores");
}

absl::StatusOr<DType> MachineFlags::Compute() const {
  for (const DType type : {DType::kF32, DType::kBf16}) {
    if (compute_ == Name(type)) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat("--compute is \"", compute_, "\", want f32 or bf16"));
}

absl::StatusOr<int> MachineFlags::Threads() const {
  if (threads_ >= 0 && threads_ <= kMaxThreads) return static_cast<int>(threads_);
  return absl::InvalidArgumentError(absl::StrCat("--threads is ", threads_, ", want 0 to ", kMaxThreads));
}

absl::StatusOr<std::unique_ptr<Device>> MachineFlags::Open() const {
  DeviceOptions options;
  options.name = device_;
  ALUDEL_ASSIGN_OR_RETURN(options.threads, Threads());
  return OpenDevice(options);
}

}  // namespace aludel
