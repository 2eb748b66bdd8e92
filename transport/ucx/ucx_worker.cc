#include "transport/ucx/ucx_worker.h"

#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_status.h"
#include "transport/wire.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Open(const UcxContext& context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened by one thread, then owned by another
  ucp_worker_h handle = nullptr;
  ucs_status_t status = ucp_worker_create(context.handle(), &params, &handle);
  if (status != UCS_OK) return FromUcs(status, "create UCX worker");
  int event_fd = -1;
  status = ucp_worker_get_efd(handle, &event_fd);
  auto worker = std::unique_ptr<UcxWorker>(new UcxWorker(handle, event_fd));
  if (status != UCS_OK) return FromUcs(status, "get the event descriptor of the UCX worker");

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  status = ucp_worker_query(handle, &attributes);
  if (status != UCS_OK) return FromUcs(status, "query UCX worker");
  if (attributes.max_am_header < kMaxWireHeaderBytes) {
    return absl::FailedPreconditionError(absl::StrCat("the chosen UCX transports carry message headers of ",
                                                      attributes.max_am_header, " bytes, want ",
                                                      kMaxWireHeaderBytes));
  }
  return worker;
}

UcxWorker::~UcxWorker() {
  if (flush_ != nullptr) ucp_request_free(flush_);
  ucp_worker_destroy(worker_);
}

bool UcxWorker::Flushed() {
  if (flush_ == nullptr) {
    const ucp_request_param_t params = {};
    const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_, &params);
    if (!UCS_PTR_IS_PTR(request)) return true;
    flush_ = request;
  }
  if (ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
  ucp_request_free(flush_);
  flush_ = nullptr;
  return true;
}

absl::Status UcxWorker::ReceiveWith(ucp_am_recv_callback_t callback, void* arg) {
  ucp_am_handler_param_t params = {};
  params.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = kActiveMessageId;
  params.cb = callback;
  params.arg = arg;
  return FromUcs(ucp_worker_set_am_recv_handler(worker_, &params), "set the UCX active message handler");
}

}  // namespace aludel
