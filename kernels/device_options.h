#pragma once

#include <string>
#include <vector>

namespace aludel {

struct DeviceOptions {
  std::string name = "cpu";  // "cpu" or "cuda:N"
  // CPU threads that one call of an op may use, the calling thread among them. 0: one per core of `cores`, or
  // else one per core that this process may run on, less where a control group leaves it less time.
  int threads = 0;
  // Cores that a CPU device computes on, at least one per thread. Each of its threads is pinned to one; the
  // thread that opens the device, and those it starts later, are kept on all of them, so that what they touch
  // first (weights, cache) lies in those cores' memory. Empty: the kernel chooses.
  std::vector<int> cores;
  // What the kernels are made of. On a CPU, for tests and comparisons: "portable", "avx2", "avx512",
  // "avx512_vnni", "avx512_bf16", or "onednn", its bf16 products on AVX-512; empty: the best that this CPU
  // has. On a GPU, the products of prefill attention: "mma", or "wgmma" on compute capability 9.0 where it
  // takes the head size; empty: "wgmma" on that, and "mma" on all others.
  std::string instructions;
  // Whether a GPU remembers repeated work as CUDA graphs. Results are the same bits either way.
  bool graphs = true;
  // Whether a decode step's kernels begin on a GPU of compute capability 9.0 while those in front of them end (programmatic
  // dependent launch): their first weights are then on their way. Off: an H200 took longer with it (tests/gpu/README.md).
  bool dependent_launch = false;
  // Whether prefill attention of "wgmma" has as many blocks as run at once, each of which takes one piece of the work after
  // the other, or one for each piece. Results are the same bits either way.
  bool persistent_attention = true;
  // Whether a GPU multiplies 9 to 64 rows of bf16 by our own kernel (kernels/cuda/gemm/batch_gemm.cuh). Off, for comparisons: up to
  // 16 rows take that of fewer rows, more take cuBLASLt.
  bool batch_gemm = true;
  // Whether a GPU times the algorithms that cuBLASLt offers for a product when it first meets about as many rows, and keeps the fastest. Off:
  // the one that cuBLASLt names first, which is the same in every process.
  bool time_algorithms = true;
};

}  // namespace aludel
