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
// logged and counted, and the old one goes on; it is looked at again when the link changes, or at Poke. Exports which artifact
// is used, and how many are in memory, of any location. Thread-safe.
class ArtifactWatch {
 public:
  struct Options {
    std::string location;
    absl::Duration interval;
    ArtifactOrigin origin;  // that the server began with
    // Loads, checks and switches; the origin of what is current then. Aborted: not now, try again.
    std::function<absl::StatusOr<ArtifactOrigin>()> load;
    std::function<void()> tend;    // at every look: frees what is not used any more
    std::function<size_t()> held;  // artifacts in memory
  };

  // What the functions use, and `metrics`, must outlive it.
  ArtifactWatch(Options options, Metrics* metrics);

  // Looks now (for SIGHUP).
  void Poke();

 private:
  absl::Status Load();
  void Tend();
  void Export(const ArtifactOrigin& origin);

  const Options options_;
  const GaugeFamily info_;
  const GaugeFamily sets_;
  const CounterFamily switches_;
  ArtifactOrigin origin_;  // the reloader's, as what follows
  bool deferred_ = false;
  std::optional<Reloader> reloader_;  // last: its thread uses the rest
};

}  // namespace aludel
