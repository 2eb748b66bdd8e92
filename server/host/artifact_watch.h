#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/host/codec_sets.h"
#include "server/observe/metrics.h"
#include "server/process/reloader.h"

namespace aludel {

// Follows the artifact of a server whose location can be switched (FollowsVersions): what is published there is loaded
// beside the old one, on a thread of its own, and takes its place once it is found whole. One that is not is refused,
// logged and counted, and the old one goes on; it is looked at again when the link changes, or at Poke. One that
// cannot be loaded for now is tried again at later looks. Exports which artifact is used, and how many are in memory,
// of any location. Thread-safe.
class ArtifactWatch {
 public:
  struct Options {
    std::string location;
    absl::Duration interval;
    ArtifactOrigin origin;  // that the server began with
    // Loads, checks and switches; the origin of what is current then. Aborted: not while older ones are used; cheap,
    // and tried at every look. ResourceExhausted, Unavailable: there is no memory, or a file cannot be read; tried at
    // fewer and fewer looks.
    std::function<absl::StatusOr<ArtifactOrigin>()> load;
    std::function<void()> tend;    // at every look: frees what is not used any more
    std::function<size_t()> held;  // artifacts in memory
  };

  // Looks between two tries, at most.
  static constexpr int kMaxLooks = 256;

  // What the functions use, and `metrics`, must outlive it.
  ArtifactWatch(Options options, Metrics* metrics);

  // Looks now (for SIGHUP).
  void Poke();

 private:
  // Of a change, or at Poke: nothing has been tried of it yet.
  absl::Status Begin();
  absl::Status Load();
  void Tend();
  void Defer(const absl::Status& status);
  void Export(const ArtifactOrigin& origin);

  const Options options_;
  Metrics* const metrics_;
  const GaugeFamily info_;
  const GaugeFamily sets_;
  const CounterFamily switches_;
  ArtifactOrigin origin_;  // the reloader's, as what follows
  bool deferred_ = false;
  bool tried_ = false;                // at this look
  int wait_ = 1;                      // looks from one try to the next
  int looks_ = 0;                     // until the next one
  std::optional<Reloader> reloader_;  // last: its thread uses the rest
};

}  // namespace aludel
