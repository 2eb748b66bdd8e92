#pragma once

#include "absl/status/status.h"

namespace aludel {

// aludel-inspect artifact: lists the versions of an artifact, publishes one, rolls back. argv[0] is "artifact".
absl::Status ArtifactCommand(int argc, char** argv);

}  // namespace aludel
