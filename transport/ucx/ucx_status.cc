#include "transport/ucx/ucx_status.h"

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

absl::StatusCode CodeOf(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return absl::StatusCode::kOk;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_MESSAGE_TRUNCATED:
    case UCS_ERR_NO_ELEM:
      return absl::StatusCode::kInvalidArgument;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::StatusCode::kResourceExhausted;
    case UCS_ERR_CANCELED:
      return absl::StatusCode::kCancelled;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return absl::StatusCode::kUnimplemented;
    case UCS_ERR_NO_DEVICE:
      return absl::StatusCode::kNotFound;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_SOME_CONNECTS_FAILED:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
      return absl::StatusCode::kUnavailable;
    default:
      return UCS_IS_LINK_ERROR(status) || UCS_IS_ENDPOINT_ERROR(status) ? absl::StatusCode::kUnavailable
                                                                        : absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status FromUcs(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::Status(CodeOf(status), absl::StrCat(what, ": ", ucs_status_string(status), " (UCX)"));
}

}  // namespace aludel
