#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/codec/codec.h"
#include "server/decode/plan/cost_model.h"
#include "server/host/codec_sets.h"

namespace aludel {

// Which version of its artifact a decode server asks prefill servers for (ChooseSet). What the cost model has learned
// of a format is of that version: where another one is chosen, later than it was switched to, it forgets the formats
// of which the encoder or the decoder is another. Thread-safe.
class ChosenArtifact {
 public:
  // `costs` must outlive it.
  ChosenArtifact(const CodecSet<DecoderFactory>& first, CostModel* costs);

  // Requests go by this one from now on; cheap where they do so already.
  void Choose(const CodecSet<DecoderFactory>& set);

 private:
  // Hashes of the encoder and of the decoder, by format.
  using Formats = std::map<std::string, std::pair<std::string, std::string>>;
  static Formats FormatsOf(const CodecSet<DecoderFactory>& set);

  CostModel* const costs_;
  absl::Mutex mutex_;
  // Of the one that is chosen, which may be freed by now.
  std::string directory_ ABSL_GUARDED_BY(mutex_);
  std::string manifest_hash_ ABSL_GUARDED_BY(mutex_);
  Formats formats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
