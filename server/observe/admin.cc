#include "server/observe/admin.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "civetweb.h"

namespace aludel {
namespace {

int Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  const mg_request_info* request = mg_get_request_info(connection);
  const bool get = std::strcmp(request->request_method, "GET") == 0;
  const bool head = std::strcmp(request->request_method, "HEAD") == 0;
  if (!get && !head) {
    mg_send_http_error(connection, 405, "%s", "want GET");
    return 405;
  }
  mg_response_header_start(connection, code);
  mg_response_header_add(connection, "Content-Type", type, -1);
  mg_response_header_add(connection, "Content-Length", absl::StrCat(body.size()).c_str(), -1);
  mg_response_header_send(connection);
  if (get) mg_write(connection, body.data(), body.size());
  return code;
}

int AnswerCheck(mg_connection* connection, void* check) {
  const absl::Status status = (*static_cast<std::function<absl::Status()>*>(check))();
  return status.ok() ? Answer(connection, 200, "text/plain", "ok\n")
                     : Answer(connection, 503, "text/plain", absl::StrCat(status.message(), "\n"));
}

int AnswerMetrics(mg_connection* connection, void* metrics) {
  return Answer(connection, 200, Metrics::kContentType, static_cast<Metrics*>(metrics)->Render());
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& listen, Metrics* metrics,
                                                                Checks checks) {
  std::unique_ptr<AdminServer> server(new AdminServer(std::move(checks)));
  // Two threads: a scrape and a probe may come together. Requests carry no body and time out.
  const char* options[] = {"listening_ports",    listen.c_str(), "num_threads", "2",
                           "request_timeout_ms", "5000",         nullptr};
  const mg_callbacks callbacks = {};
  const mg_init_data init = {&callbacks, nullptr, options};
  char why[256] = "";
  mg_error_data error = {};
  error.text = why;
  error.text_buffer_size = sizeof(why);
  server->context_ = mg_start2(const_cast<mg_init_data*>(&init), &error);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("admin_listen ", listen, ": ", why));
  }
  mg_set_request_handler(server->context_, "/metrics$", AnswerMetrics, metrics);
  mg_set_request_handler(server->context_, "/health$", AnswerCheck, &server->checks_.health);
  mg_set_request_handler(server->context_, "/ready$", AnswerCheck, &server->checks_.ready);
  return server;
}

AdminServer::~AdminServer() {
  if (context_ != nullptr) mg_stop(context_);
}

int AdminServer::port() const {
  mg_server_port port = {};
  return mg_get_server_ports(context_, 1, &port) == 1 ? port.port : 0;
}

}  // namespace aludel
