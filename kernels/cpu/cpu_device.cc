#include "kernels/cpu/cpu_device.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/instructions.h"

namespace aludel {
namespace {

// Cores this process may run on: containers and taskset narrow it, and hardware_concurrency does not say so.
int AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

constexpr char kOneDnn[] = "onednn";

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, const cpu::MicroKernels& kernels, bool library) : ops_(threads, kernels, library) {}

  std::string name() const override { return "cpu"; }

  // Every CPU reads bf16 weights at the rate of its memory; those without the instruction widen them first.

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

  Ops& ops() override { return ops_; }

 private:
  CpuOps ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCpuDevice(const DeviceOptions& options) {
  // oneDNN multiplies with AMX tiles, and where it is asked for by name.
  const bool asked = options.instructions == kOneDnn;
  const bool library = asked || (options.instructions.empty() && cpu::LibraryGemm::HasTiles());
  absl::StatusOr<const cpu::MicroKernels*> kernels =
      cpu::ChooseKernels(asked ? "avx512_bf16" : options.instructions);
  if (!kernels.ok()) return kernels.status();
  const int threads = options.threads > 0 ? options.threads : AllowedCores();
  return std::make_unique<CpuDevice>(threads, **kernels, library);
}

}  // namespace aludel
