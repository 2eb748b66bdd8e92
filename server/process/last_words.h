#pragma once

namespace aludel {

// From now on a process that must end because of an exception that is not caught (memory or a thread that the
// system does not give) logs what it was and where to look, and exits with 1. Also warns where the address space
// is limited (ulimit -v), because libraries abort by themselves there.
void GiveReasonWhenEnded();

}  // namespace aludel
