#include "transport/ucx/ucx_endpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {
namespace {

constexpr int kMaxControlInFlight = 4;

}  // namespace

struct UcxEndpoint::ControlMessage {
  UcxEndpoint* endpoint;
  WireHeader wire;  // must live until the send is complete
};

absl::Status UcxEndpoint::Create(const UcxWorker& worker, ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // with NONE, requests to a dead peer never complete
  params.err_handler.cb = &UcxEndpoint::OnError;
  params.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker.handle(), &params, &endpoint_);
  if (status != UCS_OK) state_ = State::kClosed;
  return FromUcs(status, "create UCX endpoint");
}

absl::StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Connect(const UcxWorker& worker,
                                                                  const SocketAddress& address) {
  auto endpoint = std::unique_ptr<UcxEndpoint>(new UcxEndpoint());
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.size();
  if (absl::Status status = endpoint->Create(worker, params); !status.ok()) return status;
  return endpoint;
}

absl::StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Accept(const UcxWorker& worker,
                                                                 ucp_conn_request_h request) {
  auto endpoint = std::unique_ptr<UcxEndpoint>(new UcxEndpoint());
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  if (absl::Status status = endpoint->Create(worker, params); !status.ok()) return status;
  return endpoint;
}

void UcxEndpoint::Close() {
  if (state_ != State::kOpen) return;
  state_ = State::kClosing;
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // A flushing close would wait for a peer that may hang.
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = &UcxEndpoint::OnClosed;
  params.user_data = this;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint_, &params);
  if (!UCS_PTR_IS_PTR(request)) state_ = State::kClosed;  // done at once, or there is nothing left to close
}

void UcxEndpoint::OnError(void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  auto* endpoint = static_cast<UcxEndpoint*>(self);
  if (!endpoint->closing()) endpoint->error_ = status;
}

void UcxEndpoint::OnClosed(void* request, ucs_status_t /*status*/, void* self) {
  static_cast<UcxEndpoint*>(self)->state_ = State::kClosed;
  ucp_request_free(request);
}

void UcxEndpoint::SendControl(const WireHeader& wire) {
  if (closing() || control_in_flight_ == kMaxControlInFlight) return;
  auto* const message = new ControlMessage{this, wire};
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = UCP_AM_SEND_FLAG_REPLY;  // tells the receiver which endpoint leads back here
  params.cb.send = &UcxEndpoint::OnControlSent;
  params.user_data = message;
  ++control_in_flight_;  // before the call, in which OnControlSent may come
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, kActiveMessageId, message->wire.bytes.data(),
                                                   message->wire.size, nullptr, 0, &params);
  if (UCS_PTR_IS_PTR(request)) return;  // OnControlSent deletes the message
  --control_in_flight_;                 // done, or failed: then error() says so
  delete message;
}

void UcxEndpoint::OnControlSent(void* request, ucs_status_t /*status*/, void* message) {
  const std::unique_ptr<ControlMessage> sent(static_cast<ControlMessage*>(message));
  --sent->endpoint->control_in_flight_;
  ucp_request_free(request);
}

std::string UcxEndpoint::DescribeLanes() const {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint_, stream);
  std::fclose(stream);
  std::string lanes = ParseLanes(absl::string_view(text, size));
  std::free(text);
  return lanes;
}

// A line reads "#   lane[1]:  0:tcp/lo.0 md[0] -> ...", or "#  lane[0]: cm rdmacm" for the connection
// manager, which carries no messages.
std::string ParseLanes(absl::string_view info) {
  std::vector<absl::string_view> lanes;
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    const size_t lane = line.find("lane[");
    if (lane == absl::string_view::npos) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(lane), absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 2) continue;
    absl::string_view resource = words[1];
    const size_t colon = resource.find(':');
    if (colon == absl::string_view::npos || resource.find('/') == absl::string_view::npos) continue;
    resource.remove_prefix(colon + 1);
    resource = resource.substr(0, resource.rfind('.'));  // the path index
    if (std::find(lanes.begin(), lanes.end(), resource) == lanes.end()) lanes.push_back(resource);
  }
  return lanes.empty() ? "unknown" : absl::StrJoin(lanes, " ");
}

}  // namespace aludel
