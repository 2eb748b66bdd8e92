#include "kernels/cuda/cuda_stream.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda_status.h"

namespace aludel::cuda {
namespace {

bool IsPinned(const void* host) {
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, host);
  return error == cudaSuccess && attributes.type == cudaMemoryTypeHost;
}

// Looks at both ends only: memory is pinned in whole arenas.
bool IsPinned(const void* host, size_t bytes) {
  return IsPinned(host) && IsPinned(static_cast<const char*>(host) + bytes - 1);
}

// An event of its own, recorded once, and the number of results that lie before it. All that it knows of its stream, which
// other threads may be using.
class EventMark final : public StreamMarks::Mark {
 public:
  EventMark(std::string device_name, cudaEvent_t event, ReturnRing* returns)
      : device_name_(std::move(device_name)), event_(event), returns_(returns), results_(returns->added()) {}
  ~EventMark() override { Forget(); }

  cudaEvent_t event() const { return event_; }

  bool Passed() override {
    if (event_ == nullptr) return true;
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // no later launch should find it
      return false;
    }
    Reach(error, "ask for a mark on a stream");
    return true;
  }
  void Await() override {
    if (event_ == nullptr) return;
    Reach(cudaEventSynchronize(event_), "wait for a mark on a stream");
  }

 private:
  void Reach(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
      cudaGetLastError();  // no later launch should find it
      FromCuda(error, absl::StrCat(device_name_, ": ", what)).IgnoreError();  // reports a lost device
    } else {
      returns_->Deliver(results_);
    }
    Forget();
  }
  void Forget() {
    if (event_ != nullptr) cudaEventDestroy(std::exchange(event_, nullptr));
  }

  const std::string device_name_;
  cudaEvent_t event_;  // null: passed
  ReturnRing* const returns_;
  const uint64_t results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(const std::string& device_name,
                                                               const DeviceOptions& options) {
  std::unique_ptr<CudaStream> stream(new CudaStream(device_name, options));
  if (absl::Status status = stream->Init(); !status.ok()) return status;
  return stream;
}

CudaStream::CudaStream(std::string device_name, const DeviceOptions& options)
    : device_name_(std::move(device_name)),
      dependent_launch_(options.dependent_launch),
      persistent_attention_(options.persistent_attention),
      replay_(options.graphs ? GraphReplay::OpenBackend([this] { return OpenGraphs(); }) : nullptr) {}

absl::StatusOr<std::unique_ptr<GraphBackend>> CudaStream::OpenGraphs() {
  absl::StatusOr<std::unique_ptr<CudaGraphs>> graphs = CudaGraphs::Create(device_name_, stream_);
  if (!graphs.ok()) return graphs.status();
  graphs_ = graphs->get();
  return *std::move(graphs);
}

absl::Status CudaStream::Init() {
  constexpr size_t kRingBytes = kSegments * kSegmentBytes;
  // Non-blocking: no hidden order with the legacy default stream.
  cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMalloc(&workspace_, kWorkspaceBytes);
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&device_ring_), kRingBytes);
  const std::vector<uint32_t> zeros(kCounters);
  const size_t counter_bytes = zeros.size() * sizeof(zeros[0]);
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&counters_), counter_bytes);
  if (error == cudaSuccess)
    error = cudaMemcpy(counters_, zeros.data(), counter_bytes, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaMallocHost(reinterpret_cast<void**>(&host_ring_), kRingBytes);
  char* returns = nullptr;
  if (error == cudaSuccess) error = cudaMallocHost(reinterpret_cast<void**>(&returns), kReturnBytes);
  returns_.SetMemory(returns);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&here_, cudaEventDisableTiming);
  for (cudaEvent_t& event : left_) {
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  if (error != cudaSuccess) cudaGetLastError();  // reported here, so no later launch should find it
  return FromCuda(error,
                  absl::StrFormat("%s: create a stream (%d bytes of device memory, %d pinned)", device_name_,
                                  kWorkspaceBytes + kRingBytes + counter_bytes, kRingBytes + kReturnBytes));
}

CudaStream::~CudaStream() {
  replay_.Close();
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (const cudaEvent_t event : left_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (here_ != nullptr) cudaEventDestroy(here_);
  cudaFreeHost(returns_.memory());
  cudaFreeHost(host_ring_);
  cudaFree(device_ring_);
  cudaFree(counters_);
  cudaFree(scratch_);
  cudaFree(sums_);
  cudaFree(workspace_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void* CudaStream::OnDemand(void** memory, size_t bytes) {
  if (*memory == nullptr) Collect(cudaMallocAsync(memory, bytes, stream_), "allocate scratch memory");
  return *memory;
}

const void* CudaStream::Stage(const void* host, size_t bytes) {
  if (replay_.pass() != nullptr) return InArena(replay_.pass()->Stage(host, bytes));
  for (const Staged& staged : recent_) {
    const size_t offset = staged.offset;
    if (staged.bytes == bytes && std::memcmp(host_ring_ + offset, host, bytes) == 0) {
      return device_ring_ + offset;
    }
  }
  if (bytes > kSegmentBytes) {
    Collect(absl::ResourceExhaustedError(absl::StrFormat(
        "%s: one call lists %d bytes of ids or blocks, at most %d fit", device_name_, bytes, kSegmentBytes)));
    return nullptr;
  }
  if (used_ + bytes > kSegmentBytes) NextSegment();
  const size_t offset = segment_ * kSegmentBytes + used_;
  std::memcpy(host_ring_ + offset, host, bytes);
  const cudaError_t error =
      cudaMemcpyAsync(device_ring_ + offset, host_ring_ + offset, bytes, cudaMemcpyHostToDevice, stream_);
  if (error != cudaSuccess) {
    Collect(error, "stage host arrays");
    return nullptr;
  }
  constexpr size_t kAlignment = 16;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (recent_.size() == kRemembered) recent_.erase(recent_.begin());
  recent_.push_back({offset, bytes});
  return device_ring_ + offset;
}

const void* CudaStream::StageTable(const void* of, size_t bytes, absl::FunctionRef<void(char*)> write) {
  if (replay_.pass() != nullptr) return InArena(replay_.pass()->StageTable(of, bytes, write));
  std::vector<char> table(bytes);
  write(table.data());
  return Stage(table.data(), bytes);
}

const void* CudaStream::InArena(std::optional<size_t> offset) const {
  return offset.has_value() ? graphs_->device_arena() + *offset : nullptr;
}

void CudaStream::NextSegment() {
  Collect(cudaEventRecord(left_[segment_], stream_), "record the staging ring's event");
  segment_ = (segment_ + 1) % kSegments;
  // An event that was never recorded counts as passed.
  Collect(cudaEventSynchronize(left_[segment_]), "wait for the staging ring");
  used_ = 0;
  recent_.clear();
}

void CudaStream::CopyToHost(void* host, const void* device, size_t bytes) {
  void* to = IsPinned(host, bytes) ? nullptr : returns_.Add(host, bytes);
  if (to == nullptr) to = host;
  Collect(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToHost, stream_), "copy from the GPU");
}

void CudaStream::Collect(absl::Status status) {
  if (status.ok()) return;
  if (replay_.pass() != nullptr) return replay_.pass()->Break(std::string(status.message()));
  if (error_.ok()) error_ = std::move(status);
}

void CudaStream::Collect(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // collected here, so the next launch should not find it again
  Collect(FromCuda(error, absl::StrCat(device_name_, ": ", what)));
}

absl::Status CudaStream::Synchronize() {
  Collect(cudaStreamSynchronize(stream_), "run the work on a stream");
  absl::Status first = std::move(error_);
  error_ = absl::OkStatus();
  if (first.ok()) returns_.Deliver(returns_.added());
  returns_.Forget();
  return first;
}

bool CudaStream::Finished() {
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // no later launch should find it
    return false;
  }
  Collect(error, "ask for the work on a stream");
  return true;
}

void CudaStream::Follow(CudaStream& earlier) {
  Collect(cudaEventRecord(earlier.here_, earlier.stream_), "record a stream's event");
  Collect(cudaStreamWaitEvent(stream_, earlier.here_, 0), "wait for a stream's event");
}

void CudaStream::Follow(const StreamMarks::Mark& mark) {
  const cudaEvent_t event = static_cast<const EventMark&>(mark).event();
  if (event != nullptr) Collect(cudaStreamWaitEvent(stream_, event, 0), "wait for a mark on a stream");
}

std::unique_ptr<StreamMarks::Mark> CudaStream::MarkHere() {
  cudaEvent_t event = nullptr;
  cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaEventRecord(event, stream_);
  if (error != cudaSuccess) {
    Collect(error, "mark a place on a stream");
    if (event != nullptr) cudaEventDestroy(std::exchange(event, nullptr));
    error = cudaStreamSynchronize(stream_);
    if (error == cudaSuccess) returns_.Deliver(returns_.added());
    Collect(error, "run the work on a stream");
  }
  return std::make_unique<EventMark>(device_name_, event, &returns_);
}

}  // namespace aludel::cuda
