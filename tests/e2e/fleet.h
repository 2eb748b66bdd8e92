#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "grpcpp/security/credentials.h"
#include "tests/testing/server_process.h"

namespace aludel {

// What a client saw of one Generate call.
struct Answer {
  absl::Status status;
  v1::Started started;
  std::vector<int32_t> tokens;
  std::string text;
  v1::Finished finished;
  absl::Duration took;
};

struct FleetOptions {
  std::string prefill_model = "deploy/demo/base";
  std::string decode_model = "deploy/demo/base";
  std::string codec = "formats: 'raw'";  // of both servers' codec settings
  std::string ucx_transports;            // not "": over UCX
  double bytes_per_second = 0;           // cap on what leaves the prefill server
  int handoff_timeout_ms = 20000;
  int send_arena_bytes = 33554432;
  int kv_blocks = 0;  // of the decode server
  int max_num_seqs = 4;
  int prefill_port = 0;         // not 0: somebody else serves Prefill there
  bool second_prefill = false;  // another prefill server, next best to the first
  std::string link;             // transport.testing settings of the prefill servers
  std::string both;             // settings of every server
  std::string engine;           // engine settings of every server
  std::string prefill_engine;   // instead of it, where set, of the prefill servers
  std::string decode;           // of the decode server
  std::string prefill;          // of the prefill servers
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      grpc::InsecureChannelCredentials();  // of the client
  bool prefix_cache = false;  // of the decode server: with it, it does not ask twice for the same
};

// A prefill and a decode server of this build over one model pair, on free ports of loopback, in their own
// processes. The scenario's verbs: Ask, Start and stop servers, look at their metrics.
class Fleet {
 public:
  explicit Fleet(const FleetOptions& options);

  // Starts both and waits until the decode server knows what the prefill server is to it: "ready" to be used,
  // or "refused".
  bool Start(const std::string& prefill_state = "ready");
  bool StartPrefill();  // again, on the same port
  bool StartDecode();   // again, on the same port; whether a prefill server is there or not
  bool WaitPrefillState(const std::string& state, absl::Duration limit = absl::Seconds(20));

  ServerProcess& prefill() { return *prefill_; }
  ServerProcess& second_prefill() { return *second_prefill_; }
  ServerProcess& decode() { return *decode_; }
  int prefill_port() const { return prefill_port_; }
  int decode_port() const { return decode_port_; }
  // Of the decode server; not over UCX.
  int data_plane_port() const { return data_plane_port_; }

  // Runs the call to its end. `on_event` may cancel it through the context.
  Answer Ask(const v1::GenerateRequest& request, absl::Duration limit = absl::Seconds(60),
             const std::function<void(grpc::ClientContext&, const v1::GenerateEvent&)>& on_event = nullptr);
  static v1::GenerateRequest Request(const std::vector<int32_t>& prompt, uint32_t max_tokens,
                                     const std::string& format = "raw");

  // Nothing of any request is left on the decode server: no block promised, no ticket, no frame memory.
  bool DecodeIsIdle(absl::Duration limit = absl::Seconds(10));
  bool PrefillIsIdle(absl::Duration limit = absl::Seconds(10));

 private:
  bool ConnectDecode();
  std::string TransportSettings() const;
  std::string PrefillConfig(int port, int admin_port) const;
  std::string DecodeConfig() const;

  const FleetOptions options_;
  const int prefill_port_ = options_.prefill_port != 0 ? options_.prefill_port : FreePort();
  const int prefill_admin_port_ = FreePort();
  const int second_port_ = FreePort();
  const int second_admin_port_ = FreePort();
  const int decode_port_ = FreePort();
  const int decode_admin_port_ = FreePort();
  const int data_plane_port_ = FreePort();
  std::unique_ptr<ServerProcess> prefill_;
  std::unique_ptr<ServerProcess> second_prefill_;
  std::unique_ptr<ServerProcess> decode_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

// The demo artifact with embedded codes, made by aludel-calibrate in a folder of this name for tests. The default: as many planes
// as it makes unless told otherwise.
std::string EmbeddedDemoCodec(const std::string& name, int planes = 0);

// The first `count` demo questions, passage and question as one text, as token ids of the demo tokenizer.
std::vector<std::vector<int32_t>> DemoPrompts(size_t count);

}  // namespace aludel
