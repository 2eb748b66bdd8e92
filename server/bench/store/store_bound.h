#pragma once

#include "absl/types/span.h"
#include "server/bench/request_trace.h"
#include "server/bench/store/store_simulation.h"

namespace aludel {

// What no store of these devices can do better on this trace, however it chooses and whatever it knows, where requests ask for
// the formats that DrawFormats gives them: a bound on what a use of a block saves, summed over all uses (Berger et al.,
// "Practical bounds on optimal caching with variable object sizes", 2018, for several devices and formats). To find a block that
// an earlier request had, it lies on some device from that request to this one and takes no less there, for so many requests,
// than the bytes of the format that this one asks for; of each device there are its bytes, as many times as there are
// requests. The linear relaxation of that choice is bounded by its dual (PlaceByUtility).
//
// It is loose in four ways, all of which favor the store: bytes are limited over all of the trace and not at each request, a
// block is of use without those in front of it, a block may change device and format between two uses at no cost, and parts
// of a block may be kept. Of the result, mean_delay is at most what any store has; hit_shares are those of the choice that comes
// nearest to the bound, in blocks of the trace.
StoreSimResult BoundStore(absl::Span<const TraceRequest> trace, const StoreSimOptions& options);

}  // namespace aludel
