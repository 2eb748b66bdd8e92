#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/graph_replay.h"

namespace aludel::cuda {

// Graphs of the work on one stream. Capture goes on at a stream of its own: other threads order memory behind
// the real one (CudaDevice::Free) at any time, and must not become part of a graph by that.
class CudaGraphs final : public GraphBackend {
 public:
  // Graphs are launched on `stream`, which outlives this; `device_name` is for messages.
  static absl::StatusOr<std::unique_ptr<CudaGraphs>> Create(const std::string& device_name,
                                                            cudaStream_t stream);
  ~CudaGraphs() override;

  // Takes launches between BeginCapture and EndCapture.
  cudaStream_t capture_stream() const { return capture_stream_; }
  // The arena's twin on the device.
  const char* device_arena() const { return device_arena_; }

  char* arena() override { return host_arena_; }
  absl::Status AwaitArena() override;
  absl::Status BeginCapture() override;
  absl::StatusOr<Graph> EndCapture() override;
  absl::Status Launch(Graph graph, size_t arena_bytes) override;
  void Destroy(Graph graph) override;

 private:
  CudaGraphs(std::string device_name, cudaStream_t stream)
      : device_name_(std::move(device_name)), stream_(stream) {}

  absl::Status Init();
  // The error's status; later launches do not find it again.
  absl::Status Taken(cudaError_t error, const char* what) const;

  const std::string device_name_;
  const cudaStream_t stream_;
  cudaStream_t capture_stream_ = nullptr;
  cudaEvent_t arena_read_ = nullptr;  // recorded behind every copy of the arena
  char* host_arena_ = nullptr;
  char* device_arena_ = nullptr;
};

}  // namespace aludel::cuda
