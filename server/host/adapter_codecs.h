#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "runtime/model/transformer.h"
#include "server/config/model_options.h"

namespace aludel {

// Opens the decoders that an artifact has for adapters over one model. The codes are those that the model's prefill
// servers make for any of its consumers; the decoder is the adapter's own, found by the adapter's hash. Formats that
// need no artifact are not among them: they bring the producer's cache as it is, which nothing has fitted to an adapter.
// Thread-safe.
class AdapterCodecs {
 public:
  struct Format {
    std::string name;
    std::string encoder_hash;  // CodecSpec::artifact_hash
    FrameKind kind = FrameKind::kRaw;
    std::map<std::string, std::string>
        decoders;  // hashes of those that there are, by their consumers' hashes

    // What names its codes where they are stored.
    CodecSpec Spec() const { return {.name = name, .artifact_hash = encoder_hash, .kind = kind}; }
  };
  // What one adapter has.
  struct Opened {
    std::vector<std::unique_ptr<DecoderFactory>> decoders;  // best first
    std::map<std::string, double> losses;  // format -> KL in nats, where calibration measured it
    // Format -> whose decoder it is by: of those that calibration found close enough for this adapter, too.
    std::map<std::string, std::string> shared;
  };

  // Of no artifact.
  AdapterCodecs() = default;
  // Reads the artifact's manifest, if there is one. `model` must outlive it and what it opens.
  static absl::StatusOr<AdapterCodecs> Create(const CodecOptions& options, const Transformer* model);

  // Those that an adapter may have: as they were when this was created, as prefill servers are asked for them.
  const std::vector<Format>& formats() const { return formats_; }
  const std::string& artifact() const { return artifact_; }

  // Names of formats that `next` does not have, or with another encoder, or of which a decoder is another or gone:
  // what is known of them is not true of those of `next`.
  std::set<std::string> ChangedIn(const AdapterCodecs& next) const;

  // Those of the adapter with this hash, as the artifact is now: a decoder that was added since counts. What cannot be
  // opened is left out, and logged: the adapter's prompts can be prefilled without it.
  Opened Open(const std::string& adapter_hash) const;

 private:
  std::string artifact_;
  std::vector<Format> formats_;
  const Transformer* model_ = nullptr;
};

}  // namespace aludel
