#pragma once

#include <cstdint>

namespace aludel {

// Counts what operator new gives out in a binary that links counted_memory.cc, which replaces it for all
// threads. Memory that C libraries take with malloc is not seen.
int64_t LiveBytes();
// The most that lived at once since the last RestartPeak. Other threads that allocate at this moment may be
// off by one allocation.
int64_t PeakBytes();
void RestartPeak();

}  // namespace aludel
