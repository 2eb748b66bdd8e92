#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace aludel {

// What the transports of `aludel-bench link` are compared with, in bytes per second between two processes.

// One process writes blocks of `size` into a socket of loopback, the other reads them: no frames, no threads.
absl::StatusOr<double> PlainSocketRate(int64_t size, absl::Duration duration);

// UCX's own benchmark of the same messages, `window` under way (ucp_am_bw); NotFound where ucx_perftest is
// not installed.
absl::StatusOr<double> UcxPerftestRate(int64_t size, int64_t window, const std::string& transports,
                                       const std::string& devices);

// A key and a certificate for it, which is its own authority, in files of a new folder; removed with this.
class ThrowawayCertificate {
 public:
  static absl::StatusOr<ThrowawayCertificate> Make();
  ThrowawayCertificate(ThrowawayCertificate&& other) noexcept { folder_.swap(other.folder_); }
  ThrowawayCertificate& operator=(ThrowawayCertificate&&) = delete;
  ~ThrowawayCertificate();

  std::string certificate() const { return folder_ + "/certificate.pem"; }
  std::string key() const { return folder_ + "/key.pem"; }

 private:
  ThrowawayCertificate() = default;
  std::string folder_;
};

}  // namespace aludel
