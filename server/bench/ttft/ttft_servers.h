#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/bench/ttft/child_server.h"
#include "server/bench/ttft/ttft_rounds.h"
#include "server/http/client/http_client.h"

namespace aludel {

struct TtftServerOptions {
  std::string bin;                 // folder of aludel-gateway, aludel-decode and aludel-prefill
  std::string folder;              // for configurations and logs; the caller's to make and remove
  std::string producer, consumer;  // model directories
  std::string artifact;            // "": formats that need none
  std::vector<std::string> formats;
  double link = 0;                  // bits per second of payloads; 0: no cap
  int64_t longest = 0;              // prompt, tokens
  int64_t raw_bytes_per_token = 0;  // of the producer's cache
  int64_t threads = 0;              // of each model; 0: one per core
  std::string prefill_settings;     // text format, merged over what is written here
  std::string decode_settings;
  absl::Duration timeout = absl::Minutes(10);  // of a start, a handoff, a request
};

// What one server is started with.
struct TtftConfigs {
  std::string prefill, decode, gateway;  // text format
};

struct TtftPorts {
  int prefill = 0, prefill_admin = 0, decode = 0, decode_admin = 0, gateway = 0;
};

// Decode server without a prefix cache, prefill server behind the link and with room for the frames of the longest
// prompt, gateway. InvalidArgument names the line of settings that are no PrefillConfig or DecodeConfig.
absl::StatusOr<TtftConfigs> MakeTtftConfigs(const TtftServerOptions& options, const TtftPorts& ports);

// Gateway, decode and prefill server as child processes, from Start() until the object dies. One thread.
class TtftServers : public TtftTarget {
 public:
  // Returns when all are ready. `stop` is asked during every wait; true ends it with Cancelled. Unavailable
  // names the server that has ended, with the end of its log.
  static absl::StatusOr<std::unique_ptr<TtftServers>> Start(const TtftServerOptions& options,
                                                            std::function<bool()> stop);
  ~TtftServers() override;

  absl::StatusOr<TtftSample> FirstToken(const std::vector<int32_t>& prompt,
                                        const std::string& format) override;
  absl::Status AwaitIdle() override;
  absl::StatusOr<int64_t> StoreHits() override;

 private:
  TtftServers(TtftServerOptions options, TtftPorts ports, std::function<bool()> stop);
  absl::Status AwaitReady();
  // Unavailable where a server has ended, Cancelled where the user stops.
  absl::Status Check();
  absl::Status AwaitUntil(const char* what, const std::function<bool()>& condition);
  // Body of a GET on a port of ours; "" where none answers with 200.
  std::string Get(int port, const std::string& path);
  // Value of one line of the prefill server's metrics; -1 where it is not there.
  double PrefillMetric(const std::string& sample);

  const TtftServerOptions options_;
  const TtftPorts ports_;
  const std::function<bool()> stop_;
  std::vector<std::unique_ptr<ChildServer>> children_;
  std::unique_ptr<HttpClient> completions_;
};

}  // namespace aludel
