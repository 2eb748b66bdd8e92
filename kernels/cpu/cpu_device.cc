#include "kernels/cpu/cpu_device.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "dnnl.hpp"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/host_memory.h"

namespace aludel {
namespace {

// Cores this process may run on: containers and taskset narrow it, and hardware_concurrency does not say so.
int AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : ops_(threads > 0 ? threads : AllowedCores()) {}

  std::string name() const override { return "cpu"; }

  bool has_bf16_gemm() const override {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }

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

std::unique_ptr<Device> OpenCpuDevice(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace aludel
