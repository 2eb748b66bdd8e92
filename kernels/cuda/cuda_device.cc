#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/device_options.h"
#include "kernels/replay_kinds.h"
#include "kernels/replay_stats.h"
#include "kernels/stream_marks.h"

namespace aludel {
namespace {

using cuda::CudaOps;
using cuda::CudaStream;
using cuda::FromCuda;

constexpr char kMma[] = "mma";
constexpr char kWgmma[] = "wgmma";

// Memory comes from the device's stream-ordered pool, which keeps what is freed: handoffs allocate staging
// for each request, and cudaMalloc would stop the GPU for it. Free orders the memory's next use after all work enqueued so far
// on any stream. Allocate waits for a stream that does nothing else, so its memory is good on every stream and no work is
// waited for: the pool gives it what has come free by then, or new memory. Only where there is none does it wait for what is
// being freed.
class CudaDevice final : public Device, public ReplayKinds, public StreamMarks {
 public:
  CudaDevice(int ordinal, const DeviceOptions& options)
      : ordinal_(ordinal), options_(options), name_(absl::StrCat("cuda:", ordinal)) {}
  ~CudaDevice() override;

  absl::Status Init();

  std::string name() const override { return name_; }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  void Free(void* data) override;
  void ReleaseFreed() override;

  absl::StatusOr<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  void CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) override;
  void CopyToHost(void* host, const void* device, size_t bytes, Stream stream) override;
  void Copy(void* to, const void* from, size_t bytes, Stream stream) override;
  absl::Status Synchronize(Stream stream) override;
  bool Finished(Stream stream) override { return Enter(stream).Finished(); }
  void Follow(Stream later, Stream earlier) override { Enter(later).Follow(Enter(earlier)); }
  void Follow(Stream later, const Mark& mark) override { Enter(later).Follow(mark); }
  std::unique_ptr<Mark> MarkOf(Stream stream) override { return Enter(stream).MarkHere(); }
  absl::Status TakeFailure(Stream stream) override { return Enter(stream).TakeFailure(); }
  absl::Status Pin(absl::Span<uint8_t> host) override;
  void Unpin(absl::Span<uint8_t> host) override;

  void Replay(const ReplayKey& key, Stream stream, absl::FunctionRef<void()> work) override;
  ReplayStats replay_stats(Stream stream) const override { return StateOf(stream).replay_stats(); }
  // Without graphs, too: launches are those that a graph would have.
  int64_t ReplayedPositions(int64_t positions) const override { return cuda::PositionBucket(positions); }

  bool times_products() const override { return options_.time_algorithms; }

  Ops& ops() override { return *ops_; }

 private:
  CudaStream& StateOf(Stream stream) const;
  // As above, and makes this GPU current for the calling thread.
  CudaStream& Enter(Stream stream);
  // From the pool, for every stream.
  cudaError_t Take(size_t bytes, void** data);

  int ordinal_;
  DeviceOptions options_;  // Init makes the device's own choices
  std::string name_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t allocating_ = nullptr;
  cudaStream_t freeing_ = nullptr;  // behind all streams at the latest Free
  cudaEvent_t order_ = nullptr;
  std::unique_ptr<CudaStream> default_stream_;
  std::unique_ptr<CudaOps> ops_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CudaStream>> streams_;  // guarded by mutex_, as are order_ and Free's chain
};

absl::Status CudaDevice::Init() {
  cudaDeviceProp properties;
  absl::Status status =
      FromCuda(cudaGetDeviceProperties(&properties, ordinal_), absl::StrCat(name_, ": read its properties"));
  if (!status.ok()) return status;
  const ComputeCapability capability{properties.major, properties.minor};
  if (options_.instructions.empty()) options_.instructions = BestInstructions(capability);
  options_.dependent_launch = options_.dependent_launch && capability.major >= 9;
  status = CheckCapability(absl::StrCat(name_, ": ", properties.name), capability, options_.instructions);
  if (!status.ok()) return status;
  cudaError_t error = cudaSetDevice(ordinal_);
  cudaMemPoolProps pool_properties = {};
  pool_properties.allocType = cudaMemAllocationTypePinned;
  pool_properties.location = {cudaMemLocationTypeDevice, ordinal_};
  if (error == cudaSuccess) error = cudaMemPoolCreate(&pool_, &pool_properties);
  uint64_t keep = UINT64_MAX;  // freed memory stays with this process until it is closed
  if (error == cudaSuccess) error = cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep);
  int wait = 0;  // no allocation is put behind a free that is still to come
  if (error == cudaSuccess) {
    error = cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &wait);
  }
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&allocating_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&freeing_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&order_, cudaEventDisableTiming);
  status = FromCuda(error, absl::StrCat(name_, ": set up its memory pool"));
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<CudaStream>> stream = CudaStream::Create(name_, options_);
  if (!stream.ok()) return stream.status();
  default_stream_ = *std::move(stream);
  absl::StatusOr<std::unique_ptr<CudaOps>> ops =
      CudaOps::Create(this, ordinal_, options_, options_.instructions == kWgmma, default_stream_.get());
  if (!ops.ok()) return ops.status();
  ops_ = *std::move(ops);
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(ordinal_);
  ops_.reset();
  streams_.clear();
  default_stream_.reset();
  if (order_ != nullptr) cudaEventDestroy(order_);
  if (allocating_ != nullptr) cudaStreamDestroy(allocating_);
  if (freeing_ != nullptr) {
    cudaStreamSynchronize(freeing_);
    cudaStreamDestroy(freeing_);
  }
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
}

CudaStream& CudaDevice::StateOf(Stream stream) const {
  return stream.handle == nullptr ? *default_stream_ : *static_cast<CudaStream*>(stream.handle);
}

CudaStream& CudaDevice::Enter(Stream stream) {
  CudaStream& state = StateOf(stream);
  ALUDEL_CHECK(state.positions() == 0);  // repeated work calls ops alone
  state.Collect(cudaSetDevice(ordinal_), "make the GPU current");
  return state;
}

cudaError_t CudaDevice::Take(size_t bytes, void** data) {
  constexpr size_t kLeast = 256;  // a Buffer's address is never null
  const cudaError_t error = cudaMallocFromPoolAsync(data, std::max(bytes, kLeast), pool_, allocating_);
  return error == cudaSuccess ? cudaStreamSynchronize(allocating_) : error;
}

absl::StatusOr<Buffer> CudaDevice::Allocate(size_t bytes) {
  cudaError_t error = cudaSetDevice(ordinal_);
  void* data = nullptr;
  if (error == cudaSuccess) error = Take(bytes, &data);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // no later launch should find it
    error = cudaStreamSynchronize(freeing_);
    if (error == cudaSuccess) error = Take(bytes, &data);
  }
  if (error == cudaSuccess) return Buffer(this, data, bytes);
  cudaGetLastError();  // reported here, so no later launch should find it
  if (error == cudaErrorMemoryAllocation) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot allocate %d bytes on %s: %d of %d bytes are free", bytes, name_, free, total));
  }
  return FromCuda(error, absl::StrFormat("%s: allocate %d bytes", name_, bytes));
}

void CudaDevice::Free(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  // No status to return: an error here is one of a broken context, which the next Synchronize reports.
  cudaSetDevice(ordinal_);
  const auto follow = [this](const CudaStream& stream) {
    cudaEventRecord(order_, stream.get());
    cudaStreamWaitEvent(freeing_, order_, 0);
  };
  follow(*default_stream_);
  for (const auto& stream : streams_) follow(*stream);
  cudaFreeAsync(data, freeing_);
}

void CudaDevice::ReleaseFreed() {
  // As in Free: an error here is one that the next Synchronize reports.
  cudaSetDevice(ordinal_);
  cudaStreamSynchronize(freeing_);
  if (cudaMemPoolTrimTo(pool_, 0) != cudaSuccess) cudaGetLastError();
}

absl::StatusOr<Stream> CudaDevice::CreateStream() {
  if (absl::Status status = FromCuda(cudaSetDevice(ordinal_), name_); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<CudaStream>> stream = CudaStream::Create(name_, options_);
  if (!stream.ok()) return stream.status();
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(*std::move(stream));
  return Stream{streams_.back().get()};
}

void CudaDevice::DestroyStream(Stream stream) {
  if (stream.handle == nullptr) return;
  cudaSetDevice(ordinal_);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto erased = std::erase_if(
      streams_, [&stream](const std::unique_ptr<CudaStream>& owned) { return owned.get() == stream.handle; });
  ALUDEL_CHECK(erased == 1);
}

void CudaDevice::CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  if (bytes == 0) return;
  CudaStream& state = Enter(stream);
  state.Collect(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, state.get()), "copy to the GPU");
}

void CudaDevice::CopyToHost(void* host, const void* device, size_t bytes, Stream stream) {
  if (bytes == 0) return;
  Enter(stream).CopyToHost(host, device, bytes);
}

void CudaDevice::Copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return;
  CudaStream& state = Enter(stream);
  state.Collect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state.get()), "copy on the GPU");
}

absl::Status CudaDevice::Pin(absl::Span<uint8_t> host) {
  cudaError_t error = cudaSetDevice(ordinal_);
  if (error == cudaSuccess) error = cudaHostRegister(host.data(), host.size(), cudaHostRegisterDefault);
  if (error != cudaSuccess) cudaGetLastError();  // reported here, so no later launch should find it
  return FromCuda(error, absl::StrFormat("%s: pin %d bytes of host memory", name_, host.size()));
}

void CudaDevice::Unpin(absl::Span<uint8_t> host) {
  cudaSetDevice(ordinal_);
  if (cudaHostUnregister(host.data()) != cudaSuccess) cudaGetLastError();
}

absl::Status CudaDevice::Synchronize(Stream stream) { return Enter(stream).Synchronize(); }

void CudaDevice::Replay(const ReplayKey& key, Stream stream, absl::FunctionRef<void()> work) {
  Enter(stream).Replay(key, work);
}

}  // namespace

std::string BestInstructions(ComputeCapability capability) {
  return capability.major == 9 && capability.minor == 0 ? kWgmma : kMma;
}

absl::Status CheckCapability(const std::string& gpu, ComputeCapability capability,
                             const std::string& instructions) {
  const auto [major, minor] = capability;
  if (major < 8) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has compute capability %d.%d, want 8.0 or more", gpu, major, minor));
  }
  if (instructions == kWgmma && (major != 9 || minor != 0)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has compute capability %d.%d, instructions \"%s\" want 9.0; \"%s\" runs on it",
                        gpu, major, minor, kWgmma, kMma));
  }
  return absl::OkStatus();
}

std::optional<int64_t> FreeCudaMemory(int ordinal) {
  size_t free = 0, total = 0;
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error == cudaSuccess) return static_cast<int64_t>(free);
  cudaGetLastError();  // no later launch should find it
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal, const DeviceOptions& options) {
  const std::string name = absl::StrCat("cuda:", ordinal);
  const std::string& instructions = options.instructions;
  if (!instructions.empty() && instructions != kMma && instructions != kWgmma) {
    return absl::InvalidArgumentError(
        absl::StrFormat("instructions \"%s\" are not known on %s, want one of \"%s\", \"%s\"", instructions,
                        name, kMma, kWgmma));
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    const int version = CUDART_VERSION;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: %s; install an NVIDIA driver for CUDA %d.%d or later on a machine with a GPU, or "
        "choose device \"cpu\"",
        name, cudaGetErrorString(error), version / 1000, version % 1000 / 10));
  }
  if (ordinal >= count) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: this process sees %d GPUs, want an ordinal below that (CUDA_VISIBLE_DEVICES hides some)", name,
        count));
  }
  auto device = std::make_unique<CudaDevice>(ordinal, options);
  if (absl::Status status = device->Init(); !status.ok()) return status;
  return device;
}

}  // namespace aludel
