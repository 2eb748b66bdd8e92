#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/model/transformer_options.h"
#include "runtime/model/weights/safetensors.h"

namespace aludel {

class LoraAdapter;

// Bytes [begin, end) of a tensor.
struct TensorBytes {
  const SafetensorsEntry* tensor = nullptr;
  size_t begin = 0;
  size_t end = 0;
};

// A piece of a model's loading, e.g. packing some rows of one matrix.
struct LoadTask {
  std::vector<TensorBytes> reads;     // all it looks at
  std::function<absl::Status()> run;  // on some thread, while other tasks run on others
};

// Bytes read of all. Called on the thread that loads.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

struct StreamedFiles {
  // Of the model: XXH3 (128 bits), hex, over config.json and the files in name order; with an adapter
  // HashAdapted's of that.
  std::string hash;
  bool past_cache = false;  // whether a file bypassed the page cache
};

// Reads a model's files once, from the first byte to the last at the speed of the disk, which is when a disk
// is fastest. Several reads are in flight; the calling thread hashes what arrives; tasks run on threads of
// their own as soon as their bytes are there, in that order, straight from the files' pages. A page is
// dropped behind the last task that reads it: resident memory grows by what tasks keep and by a bounded
// number of pages. A task may look at nothing but its `reads`: other bytes may be gone. The first error of a
// task or of the disk ends it.
absl::StatusOr<StreamedFiles> StreamWeights(const ModelFiles& files, std::vector<LoadTask> tasks,
                                            const StreamOptions& options, const LoadProgress& progress);

// Of the base that has this hash with an adapter: over adapter_config.json, adapter_model.safetensors and the
// base's hash, so that an adapter is identified without reading its base again.
std::string HashAdapted(const LoraAdapter& adapter, const std::string& base_hash);

// The same hash without loading anything.
absl::StatusOr<std::string> HashModel(const ModelPath& path);

}  // namespace aludel
