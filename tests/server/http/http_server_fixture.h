#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/http_server.h"
#include "tests/server/gateway/event.h"
#include "tests/server/http/raw_client.h"

namespace aludel {

inline constexpr char kGet[] = "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n";

// Serves /echo (answers "METHOD PATH BODY"), /number (answers "QUERY!"), /stream (three chunks), /large
// (three large ones) and /flood (as fast as it is let).
class HttpServerTest : public ::testing::Test {
 protected:
  void StartServer(HttpServerOptions options = {}) {
    auto server = HttpServer::Start(options, [this](HttpRequest request, HttpResponder responder) {
      Handle(std::move(request), std::move(responder));
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void Handle(HttpRequest request, HttpResponder responder) {
    if (request.path == "/echo") {
      HttpResponse response;
      response.body = absl::StrCat(request.method, " ", request.path, " ", request.body);
      responder.Respond(std::move(response));
    } else if (request.path == "/number") {
      HttpResponse response;
      response.body = request.query + "!";
      responder.Respond(std::move(response));
    } else if (request.path == "/stream") {
      responder.StartStream(200, "text/event-stream", {});
      for (int i = 0; i < 3; ++i) responder.Write(absl::StrCat("data: ", i, "\n\n"));
      responder.Finish();
    } else if (request.path == "/flood") {
      responder.StartStream(200, "text/event-stream", {});
      const std::string block(64 << 10, 'x');
      while (responder.Write(block)) absl::SleepFor(absl::Milliseconds(1));
      flood_stopped_.Notify();
    } else if (request.path == "/large") {
      responder.StartStream(200, "text/event-stream", {});
      for (int i = 0; i < 3; ++i) {
        Event flushed;
        responder.Write(std::string(512 << 10, 'x'), [&] { flushed.Notify(); });
        flushed.Wait();
      }
      responder.Finish();
    }  // anything else is dropped
  }

  Event flood_stopped_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace aludel
