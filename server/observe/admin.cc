#include "server/observe/admin.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr int kMaxConnections = 1024;
// A scrape does not wait for a POST that takes long.
constexpr int kHandlerThreads = 2;
// Scrapers and probes keep no connection for long; one that is idle must not keep them out.
constexpr absl::Duration kIdleTimeout = absl::Seconds(5);
constexpr size_t kMaxHeaderBytes = 8192;

HttpResponse Text(int status, std::string body) {
  return {.status = status, .content_type = "text/plain", .body = std::move(body)};
}

HttpResponse AnswerCheck(const absl::Status& status) {
  return status.ok() ? Text(200, "ok\n") : Text(503, absl::StrCat(status.message(), "\n"));
}

// Of what is neither a probe nor a scrape.
std::optional<HttpResponse> RefuseOwn(const HttpRequest& request) {
  const bool known = request.path == "/metrics" || request.path == "/health" || request.path == "/ready";
  if (!known) return Text(404, "want /metrics, /health or /ready\n");
  if (request.method == "GET" || request.method == "HEAD") return std::nullopt;
  HttpResponse response = Text(405, "want GET\n");
  response.headers.push_back({"Allow", "GET, HEAD"});
  return response;
}

}  // namespace

bool AdminServer::IsMore(const HttpRequest& request) const {
  return checks_.more != nullptr && absl::StartsWith(request.path, checks_.more_path);
}

std::optional<HttpResponse> AdminServer::CheckHead(const HttpRequest& head) const {
  if (!IsMore(head)) return RefuseOwn(head);
  return checks_.check_head == nullptr ? std::nullopt : checks_.check_head(head);
}

HttpResponse AdminServer::Answer(const HttpRequest& request) const {
  if (IsMore(request)) {
    if (auto more = checks_.more(request)) return *std::move(more);
  }
  if (auto refused = RefuseOwn(request)) return *std::move(refused);
  if (request.path == "/health") return AnswerCheck(checks_.health());
  if (request.path == "/ready") return AnswerCheck(checks_.ready());
  return {.content_type = Metrics::kContentType, .body = metrics_->Render()};
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& listen, Metrics* metrics,
                                                                Checks checks) {
  absl::StatusOr<HttpServerOptions> options = ListenOn(listen);
  if (!options.ok()) return options.status();
  std::unique_ptr<AdminServer> admin(new AdminServer(metrics, std::move(checks)));
  options->handler_threads = kHandlerThreads;
  options->max_connections = kMaxConnections;
  options->max_queued_requests = kMaxConnections;
  options->limits.max_header_bytes = kMaxHeaderBytes;
  options->limits.max_body_bytes = admin->checks_.max_body_bytes;
  options->header_timeout = kIdleTimeout;
  options->idle_timeout = kIdleTimeout;
  options->check_head = [admin = admin.get()](const HttpRequest& head) { return admin->CheckHead(head); };
  // A probe does not wait for a scrape.
  options->at_once = [](const HttpRequest& request) {
    return request.path != "/metrics" && request.method != "POST";
  };
  absl::StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(*options, [admin = admin.get()](HttpRequest request, HttpResponder responder) {
        responder.Respond(admin->Answer(request));
      });
  if (!server.ok()) {
    return absl::UnavailableError(absl::StrCat("admin_listen: ", server.status().message()));
  }
  admin->server_ = *std::move(server);
  return admin;
}

}  // namespace aludel
