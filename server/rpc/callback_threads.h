#pragma once

namespace aludel {

// Keeps the threads that gRPC's callbacks run on until the process ends. Without it gRPC (1.51) joins them when the last
// channel or server that uses them goes, and aborts the process where that happens on one of them: where the end of a call
// drops the last channel, because a list names its server no more or the process ends. Call it before the first channel is
// opened. Thread-safe; what it opens, once, leads nowhere and is never freed.
void KeepCallbackThreads();

}  // namespace aludel
