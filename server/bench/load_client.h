#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace aludel {

// One request of a load: when it arrives, seconds after the start, and its JSON body (a streamed completion).
struct LoadRequest {
  double arrival = 0;
  std::string body;
  int64_t max_tokens = 0;  // that it asks for, for the report
};

// What became of it. Times are seconds; they begin at its arrival, so that a client that falls behind its own
// schedule does not flatter the server.
struct LoadResult {
  double arrival = 0;
  int status = 0;     // HTTP; 0: no answer
  std::string error;  // "" where a whole answer came
  double ttft = 0;    // to the first text
  double e2e = 0;
  // Between pieces of text, one entry for each but the first. Pieces that arrive together share the time since those before
  // them; what comes with the first piece shares the next time.
  std::vector<double> inter_token;
  int64_t coalesced = 0;          // pieces that did not come alone
  int64_t asked_tokens = 0;       // its max_tokens
  int64_t prompt_tokens = 0;      // as the server counts them; 0: it does not say
  int64_t completion_tokens = 0;  // as the server counts them, else pieces of text
  bool ok() const { return error.empty(); }
};

struct LoadTarget {
  std::string url;        // of the completions endpoint
  std::string api_key;    // "": none
  bool insecure = false;  // do not verify the server's certificate
  double timeout_seconds = 120;
  int64_t max_connections = 1024;
  int64_t concurrency = 0;  // 0: an open loop; else a closed one, with so many requests under way
};

// Sends every request at its arrival time whether or not earlier ones have ended (open loop), or, in order and
// whatever their arrival times, one as soon as another has ended (closed loop); over kept connections, from one
// thread. `progress(done)` is called as requests end; false stops: requests that have not ended are errors, and those
// that were not sent yet have no result. Fails only where HTTP itself cannot be set up.
absl::StatusOr<std::vector<LoadResult>> RunLoad(const LoadTarget& target,
                                                const std::vector<LoadRequest>& requests,
                                                const std::function<bool(int64_t done)>& progress);

}  // namespace aludel
