#include "kernels/cpu/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/core_list.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/onednn_loader.h"
#include "kernels/cpu/vector/instructions.h"
#include "kernels/device_options.h"

namespace aludel {
namespace {

// Threads without a core list: more than the cores, or than the time that a control group leaves, would only
// wait for each other.
int DefaultThreads() {
  const int cores = static_cast<int>(AllowedCores().size());
  const int quota = CoresOfQuota();
  return std::max(1, quota == 0 ? cores : std::min(cores, quota));
}

constexpr char kOneDnn[] = "onednn";

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, absl::Span<const int> cores, const cpu::MicroKernels& kernels, bool library)
      : ops_(threads, cores, kernels, library) {}

  std::string name() const override { return "cpu"; }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    void* data = AllocateHostMemory(bytes).release();
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrFormat("cannot allocate %d bytes on cpu", bytes));
    }
    return Buffer(this, data, bytes);
  }
  void Free(void* data) override { HostMemory(data).reset(); }

  absl::StatusOr<Stream> CreateStream() override { return Stream{}; }
  void DestroyStream(Stream) override {}
  void CopyToDevice(void* device, const void* host, size_t bytes, Stream) override {
    if (bytes > 0) std::memcpy(device, host, bytes);  // of nothing, pointers may be null
  }
  void CopyToHost(void* host, const void* device, size_t bytes, Stream) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void Copy(void* to, const void* from, size_t bytes, Stream) override { std::memcpy(to, from, bytes); }
  absl::Status Synchronize(Stream) override { return absl::OkStatus(); }

  size_t cache_bytes() const override { return cache_bytes_; }

  Ops& ops() override { return ops_; }

 private:
  CpuOps ops_;
  // Kept: asking means CPUID, which traps in a virtual machine.
  const size_t cache_bytes_ = static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)));
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCpuDevice(const DeviceOptions& options) {
  // oneDNN multiplies with AMX tiles, and where it is asked for by name.
  const bool asked = options.instructions == kOneDnn;
  if (asked) {
    if (absl::Status status = cpu::LoadOneDnn(); !status.ok()) return status;
  }
  const bool library = asked || (options.instructions.empty() && cpu::LibraryGemm::HasTiles());
  absl::StatusOr<const cpu::MicroKernels*> kernels =
      cpu::ChooseKernels(asked ? "avx512_bf16" : options.instructions);
  if (!kernels.ok()) return kernels.status();
  const int cores = static_cast<int>(options.cores.size());
  if (cores > 0 && options.threads > cores) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "device has %d threads for %d cores, want one core for each", options.threads, cores));
  }
  if (cores > 0) {
    if (absl::Status status = KeepOnCores(options.cores); !status.ok()) return status;
  }
  const int at_most = cores > 0 ? cores : DefaultThreads();
  const int threads = options.threads > 0 ? options.threads : at_most;
  return std::make_unique<CpuDevice>(threads, options.cores, **kernels, library);
}

}  // namespace aludel
