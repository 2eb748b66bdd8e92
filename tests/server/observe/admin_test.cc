#include "server/observe/admin.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The whole answer to one request, headers included.
std::string Ask(int port, const std::string& method, const std::string& path,
                const std::string& headers = "") {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", headers, "\r\n");
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
    }
  }
  close(fd);
  return answer;
}

class Admin : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = AdminServer::Start(
        "127.0.0.1:0", &metrics_, {.health = [this] { return health_; }, .ready = [this] { return ready_; }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  Metrics metrics_;
  absl::Status health_;
  absl::Status ready_;
  std::unique_ptr<AdminServer> server_;
};

TEST_F(Admin, ServesMetrics) {
  metrics_.Gauge("aludel_tickets_open", "Tickets issued and not closed.").Set({}, 3);
  const std::string answer = Ask(server_->port(), "GET", "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("aludel_tickets_open 3"));
}

TEST_F(Admin, ReadinessSaysWhyNot) {
  EXPECT_THAT(Ask(server_->port(), "GET", "/ready"), HasSubstr("\r\n\r\nok\n"));
  ready_ = absl::UnavailableError("draining");
  const std::string answer = Ask(server_->port(), "GET", "/ready");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\ndraining\n"));
  EXPECT_THAT(Ask(server_->port(), "GET", "/health"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Admin, RefusesWhatItDoesNotServe) {
  EXPECT_THAT(Ask(server_->port(), "GET", "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(server_->port(), "GET", "/metrics/x"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(server_->port(), "POST", "/ready"), StartsWith("HTTP/1.1 405 "));
}

// A client that sends no body at all is answered all the same.
TEST(AdminHead, RefusesBeforeTheBodyIsRead) {
  Metrics metrics;
  const auto ok = [] { return absl::OkStatus(); };
  const auto refuse = [](const HttpRequest&) { return HttpResponse{.status = 401}; };
  auto server = AdminServer::Start("127.0.0.1:0", &metrics,
                                   {.health = ok,
                                    .ready = ok,
                                    .more = [](const HttpRequest&) { return HttpResponse{.status = 200}; },
                                    .more_path = "/more/",
                                    .check_head = refuse,
                                    .max_body_bytes = 1 << 20});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Ask((*server)->port(), "POST", "/more/x", "Content-Length: 1000\r\n"),
              StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(Ask((*server)->port(), "POST", "/ready", "Content-Length: 1000\r\n"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask((*server)->port(), "POST", "/none", "Content-Length: 1000\r\n"),
              StartsWith("HTTP/1.1 404 "));
}

// One thread is in a POST that lasts, and the other one answers.
TEST(AdminHead, AScrapeDoesNotWaitForAPost) {
  Metrics metrics;
  const auto ok = [] { return absl::OkStatus(); };
  absl::Notification begun;
  absl::Notification go_on;
  auto server = AdminServer::Start("127.0.0.1:0", &metrics,
                                   {.health = ok,
                                    .ready = ok,
                                    .more =
                                        [&](const HttpRequest&) {
                                          begun.Notify();
                                          go_on.WaitForNotificationWithTimeout(absl::Seconds(60));
                                          return HttpResponse{.status = 200};
                                        },
                                    .more_path = "/more/"});
  ASSERT_TRUE(server.ok()) << server.status();
  std::thread post([&] { Ask((*server)->port(), "POST", "/more/x"); });
  begun.WaitForNotification();
  EXPECT_THAT(Ask((*server)->port(), "GET", "/metrics"), StartsWith("HTTP/1.1 200 "));
  EXPECT_FALSE(go_on.HasBeenNotified());
  go_on.Notify();
  post.join();
}

TEST_F(Admin, TakenPortIsAnError) {
  const auto second = AdminServer::Start(absl::StrCat("127.0.0.1:", server_->port()), &metrics_, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace aludel
