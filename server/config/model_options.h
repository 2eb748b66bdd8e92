#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/device_options.h"
#include "runtime/engine/engine_options.h"
#include "runtime/model/transformer_options.h"

namespace aludel {

// The model of a server and the engine over it.
struct ModelOptions {
  std::string directory;
  std::string adapter;  // directory of a LoRA adapter; "": none

  // The last part of both paths, "base+adapter".
  std::string Name() const;
  DeviceOptions device;
  TransformerOptions transformer;
  EngineOptions engine;
  uint64_t kv_bytes =
      0;  // not 0: engine.kv_blocks is this many bytes' worth, once the model's shape is known
};

struct CodecOptions {
  std::string artifact;
  std::vector<std::string> formats;  // empty: all
  bool adapters = false;             // some over the model may have decoders where the model itself has none
  // Of an artifact that may be switched (FollowsVersions):
  absl::Duration reload_interval = absl::Seconds(1);
  absl::Duration keep_previous = absl::Minutes(1);
};

}  // namespace aludel
