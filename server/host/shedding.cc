#include "server/host/shedding.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "server/rpc/hopeless.h"

namespace aludel {

absl::Status ShedIfHopeless(std::optional<double> predicted_seconds, bool busy, absl::Time now,
                            absl::Time deadline) {
  if (!busy || !predicted_seconds || now + absl::Seconds(*predicted_seconds) <= deadline) {
    return absl::OkStatus();
  }
  absl::Status shed = absl::ResourceExhaustedError(
      absl::StrFormat("overloaded: the first token is expected in %.3f s, the deadline is in %.3f s",
                      *predicted_seconds, absl::ToDoubleSeconds(deadline - now)));
  shed.SetPayload(kHopeless, absl::Cord());
  return shed;
}

}  // namespace aludel
