#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/gateway/openai/model/served_models.h"
#include "tests/bench/whole_requests.h"

namespace aludel {

// What one connection cost the process that serves it.
struct WholeCost {
  size_t bytes = 0;         // sent
  double seconds = 0;       // of all threads, until nothing runs any more
  int64_t peak_bytes = 0;   // from operator new (counted_memory.h), over what there was before
  size_t answer_bytes = 0;  // received
  int status = 0;           // of the first answer; 0: none
  std::string fault;        // "" or what must not be: it ends without an answer, or not at all
};

// A whole gateway in this process, as its main() makes it, on a loopback port, with one key, before a stand-in
// for a decode server that says one token. Requests go through a real connection. Not thread-safe: what one
// measures is what all threads do meanwhile.
class GatewayMeter {
 public:
  // `models` must outlive it and have "chat". Fails where the gateway does not become ready.
  static absl::StatusOr<std::unique_ptr<GatewayMeter>> Open(const ServedModels* models);
  virtual ~GatewayMeter() = default;
  virtual WholeCost Measure(const WholeRequest& request) = 0;
};

}  // namespace aludel
