#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/device_options.h"

namespace aludel {

// GPU `ordinal` of this process's CUDA runtime as a Device; of `options` it reads what is said there of
// GPUs. InvalidArgument for unknown instructions. FailedPrecondition, with the runtime's reason and the
// remedy, where there is no driver, no such GPU, one older than compute capability 8.0, or one without the instructions.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal, const DeviceOptions& options);

// What OpenCudaDevice wants of a GPU, which `gpu` names for the message. Needs no GPU itself.
struct ComputeCapability {
  int major, minor;
};
absl::Status CheckCapability(const std::string& gpu, ComputeCapability capability,
                             const std::string& instructions);
// What a GPU takes where DeviceOptions::instructions is empty.
std::string BestInstructions(ComputeCapability capability);

// Bytes that GPU `ordinal` has free, or nothing where it does not say.
std::optional<int64_t> FreeCudaMemory(int ordinal);

}  // namespace aludel
