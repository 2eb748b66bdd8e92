#include "kernels/cuda/cuda_graphs.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"

namespace aludel::cuda {

absl::StatusOr<std::unique_ptr<CudaGraphs>> CudaGraphs::Create(const std::string& device_name,
                                                               cudaStream_t stream) {
  std::unique_ptr<CudaGraphs> graphs(new CudaGraphs(device_name, stream));
  if (absl::Status status = graphs->Init(); !status.ok()) return status;
  return graphs;
}

absl::Status CudaGraphs::Init() {
  constexpr size_t kBytes = Recording::kArenaBytes;
  cudaError_t error = cudaStreamCreateWithFlags(&capture_stream_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&arena_read_, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&device_arena_), kBytes);
  if (error == cudaSuccess) error = cudaMallocHost(reinterpret_cast<void**>(&host_arena_), kBytes);
  return Taken(error, "set up for graphs");
}

CudaGraphs::~CudaGraphs() {
  cudaStreamSynchronize(stream_);
  cudaFreeHost(host_arena_);
  cudaFree(device_arena_);
  if (arena_read_ != nullptr) cudaEventDestroy(arena_read_);
  if (capture_stream_ != nullptr) cudaStreamDestroy(capture_stream_);
}

absl::Status CudaGraphs::Taken(cudaError_t error, const char* what) const {
  if (error != cudaSuccess) cudaGetLastError();
  return FromCuda(error, absl::StrCat(device_name_, ": ", what));
}

absl::Status CudaGraphs::AwaitArena() {
  // An event that was never recorded counts as passed.
  return Taken(cudaEventSynchronize(arena_read_), "wait for the copy of a graph's arrays");
}

absl::Status CudaGraphs::BeginCapture() {
  // Thread-local: what other threads do meanwhile (allocating, packing weights) is not captured.
  return Taken(cudaStreamBeginCapture(capture_stream_, cudaStreamCaptureModeThreadLocal), "begin a capture");
}

absl::StatusOr<GraphBackend::Graph> CudaGraphs::EndCapture() {
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(capture_stream_, &captured);
  if (error == cudaSuccess) error = cudaGraphInstantiateWithFlags(&graph, captured, 0);
  if (captured != nullptr) cudaGraphDestroy(captured);
  if (absl::Status status = Taken(error, "make a graph"); !status.ok()) return status;
  return Graph{graph};
}

absl::Status CudaGraphs::Launch(Graph graph, size_t arena_bytes) {
  cudaError_t error =
      cudaMemcpyAsync(device_arena_, host_arena_, arena_bytes, cudaMemcpyHostToDevice, stream_);
  if (error == cudaSuccess) error = cudaEventRecord(arena_read_, stream_);
  if (error == cudaSuccess) error = cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_);
  return Taken(error, "launch a graph");
}

void CudaGraphs::Destroy(Graph graph) {
  cudaStreamSynchronize(stream_);
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace aludel::cuda
