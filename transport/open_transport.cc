#include "transport/open_transport.h"

#include "absl/strings/str_cat.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/wire.h"

namespace aludel {
namespace {

absl::Status Validate(const TransportOptions& options) {
  if (options.max_inflight_sends < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_inflight_sends is ", options.max_inflight_sends, ", want at least 1"));
  }
  if (!(options.link.bytes_per_second >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("link.bytes_per_second is ", options.link.bytes_per_second, ", want 0 or more"));
  }
  if (options.link.delay < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("link.delay is ", absl::FormatDuration(options.link.delay), ", want 0 or more"));
  }
  const LinkEmulation& link = options.link;
  if (!(link.drop_rate >= 0 && link.corrupt_rate >= 0 && link.duplicate_rate >= 0 &&
        link.drop_rate + link.corrupt_rate + link.duplicate_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("link: the shares of lost, corrupted and doubled messages are ", link.drop_rate, ", ",
                     link.corrupt_rate, ", ", link.duplicate_rate, ", want 0 or more and a sum up to 1"));
  }
  if (options.receive_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "receive_timeout is ", absl::FormatDuration(options.receive_timeout), ", want more than 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const TransportOptions& options,
                                                         MessageHandler* handler) {
  const absl::StatusOr<AddressKind> kind = AddressKindOf(options.kind);
  if (!kind.ok()) return kind.status();
  if (absl::Status status = Validate(options); !status.ok()) return status;
  switch (*kind) {
    case AddressKind::kLoopback:
      return std::make_unique<LoopbackTransport>(options, handler);
    case AddressKind::kTcp:
      return TcpTransport::Open(options, handler);
    case AddressKind::kUcx:
      return UcxTransport::Open(options, handler);
  }
  return absl::InternalError("unknown transport kind");
}

}  // namespace aludel
