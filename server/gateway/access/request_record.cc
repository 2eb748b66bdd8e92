#include "server/gateway/access/request_record.h"

namespace aludel {

const char* OutcomeName(int status) {
  switch (status) {
    case 200:
    case 204:
      return "ok";
    case 400:
    case 405:
      return "invalid_argument";
    case 401:
      return "unauthenticated";
    case 403:
      return "permission_denied";
    case 404:
      return "not_found";
    case 422:
      return "failed_precondition";
    case 429:
      return "resource_exhausted";
    case 499:
      return "cancelled";
    case 503:
      return "unavailable";
    case 504:
      return "deadline_exceeded";
    default:
      return "internal";
  }
}

}  // namespace aludel
