#include "kernels/open_device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/cpu/cpu_device.h"
#ifdef ALUDEL_HAVE_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

namespace aludel {
namespace {

// Device "cuda:<ordinal>".
absl::StatusOr<std::unique_ptr<Device>> OpenCuda(const DeviceOptions& options, absl::string_view ordinal) {
  int number = 0;
  if (!absl::SimpleAtoi(ordinal, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device \"", options.name, "\" has no GPU number, want \"cuda:0\" or another"));
  }
#ifdef ALUDEL_HAVE_CUDA
  return OpenCudaDevice(number, options);
#else
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", options.name, "\": this build has no CUDA, want \"cpu\""));
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device threads is ", options.threads, ", want 0 or more"));
  }
  if (options.name == "cpu") return OpenCpuDevice(options);
  absl::string_view rest = options.name;
  if (absl::ConsumePrefix(&rest, "cuda:")) return OpenCuda(options, rest);
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", options.name, "\" is not known, want \"cpu\" or \"cuda:N\""));
}

}  // namespace aludel
