#include "transport/ucx/ucx_listener.h"

#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<UcxListener>> UcxListener::Open(const UcxWorker& worker,
                                                               const SocketAddress& address) {
  auto listener = std::unique_ptr<UcxListener>(new UcxListener());
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.size();
  params.conn_handler.cb = &UcxListener::OnRequest;
  params.conn_handler.arg = listener.get();
  ucs_status_t status = ucp_listener_create(worker.handle(), &params, &listener->listener_);
  if (status != UCS_OK) return FromUcs(status, absl::StrCat("listen on ", address.ToString()));

  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener->listener_, &attributes);
  if (status != UCS_OK) return FromUcs(status, absl::StrCat("query listener on ", address.ToString()));
  const auto bound = SocketAddress::FromSystem(reinterpret_cast<const sockaddr*>(&attributes.sockaddr));
  if (!bound.ok()) return bound.status();
  listener->port_ = bound->port();
  return listener;
}

UcxListener::~UcxListener() {
  if (listener_ == nullptr) return;
  for (ucp_conn_request_h request : requests_) Reject(request);
  ucp_listener_destroy(listener_);
}

void UcxListener::OnRequest(ucp_conn_request_h request, void* self) {
  static_cast<UcxListener*>(self)->requests_.push_back(request);
}

}  // namespace aludel
