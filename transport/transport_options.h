#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace aludel {

// What lies between a channel and its peer, emulated on the sending side. For tests and benchmarks.
struct LinkEmulation {
  double bytes_per_second = 0;  // of payloads; 0: no cap
  absl::Duration delay;
  // Shares of the messages that are lost (`done` says Ok), arrive with one bit changed, or arrive twice.
  double drop_rate = 0;
  double corrupt_rate = 0;
  double duplicate_rate = 0;
  uint64_t seed = 1;  // repeats the faults of a channel

  bool has_faults() const { return drop_rate > 0 || corrupt_rate > 0 || duplicate_rate > 0; }
};

// Certificates of a TCP transport: PEM files, read again when they change. All empty: plain TCP.
struct TransportTls {
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;  // a peer whose certificate these authorities have not signed is refused
  absl::Duration reload_interval = absl::Seconds(1);
  // Which of those certificates belong to peers (transport/peer_identity.h); empty: all.
  std::vector<std::string> peer_identities;

  bool enabled() const { return !certificate_file.empty(); }
};

struct TransportOptions {
  // "tcp" or "ucx" between processes, "loopback" inside one. UCX's parsers face whatever reaches its ports,
  // and a malformed byte there can end the process: for networks on which nothing else can send.
  std::string kind = "tcp";
  // False: connects to peers and receives nothing; there is no listener and no address.
  bool accepts = true;
  // TCP only. Where peers connect to, host:port; port 0 is any that is free.
  std::string listen = "127.0.0.1:0";
  TransportTls tls;  // TCP only
  // UCX only. Comma-separated UCX transports ("tcp", "posix,cma,tcp", "rc,tcp"); empty: UCX chooses. Shared
  // memory needs tcp beside it, to connect and to notice a peer's death.
  std::string ucx_transports;
  // UCX only. Comma-separated devices ("lo", "mlx5_0:1"); empty: all. Also decides which addresses peers
  // are told.
  std::string ucx_devices;
  // Sends queued and not finished, per channel, beyond which Send fails with ResourceExhausted. Servers set
  // it from transport.max_inflight_sends of config.proto, whose default is larger.
  int max_inflight_sends = 1024;
  LinkEmulation link;  // of each channel
  // A payload that has not arrived so long after its OnHeader ends with an error, and its
  // connection is closed: a sender that hangs must not keep the receiver's memory for ever. Over TCP what has come of it gives it
  // a second more for each 125,000 bytes (1 Mb/s), so long as more comes: a large one over a slow link does not end
  // what shares the connection.
  absl::Duration receive_timeout = absl::Seconds(60);  // not on loopback
};

}  // namespace aludel
