// Random sequences of requests against the whole server: pipelined, chunked, with trailers, malformed, cut
// anywhere, by clients that half-close, reset, stop reading or are there when the server stops. Whatever they
// do, what is answered is answered in order, once, and with that request's answer; where neither side breaks
// off, every whole request is answered.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/http_server.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using Random = std::mt19937_64;

constexpr absl::Duration kRunFor = absl::Seconds(4);
constexpr HttpLimits kLimits = {.max_header_bytes = 1024, .max_body_bytes = 60000};

// The body of the answer to "/PLACE?NUMBER" begins with "#NUMBER:BYTES-OF-ITS-BODY#".
void Handle(HttpRequest request, HttpResponder responder) {
  const std::string body = absl::StrCat("#", request.query, ":", request.body.size(), "#");
  if (request.path == "/stream") {
    responder.StartStream(200, "text/plain", {});
    responder.Write(body.substr(0, 1));
    responder.Write(body.substr(1));
    responder.Finish();
    return;
  }
  if (request.path == "/dropped") return;
  if (request.path == "/watched") responder.OnDisconnect([] {});
  if (request.path == "/slow") absl::SleepFor(absl::Microseconds(500));
  HttpResponse response;
  response.body = body;
  if (request.path == "/large") response.body += std::string(100000, 'x');
  responder.Respond(std::move(response));
}

// What one client sends.
struct Plan {
  std::string bytes;
  std::vector<size_t> body_bytes;  // of each whole request
  bool malformed = false;          // something else follows them, which gets an error
  bool watched = false;            // a handler takes a half-closed client for gone
  bool dropped = false;            // some answers are 500
};

std::string Chunked(const std::string& body, Random& random) {
  std::string bytes;
  for (size_t at = 0; at < body.size();) {
    const size_t size = 1 + random() % std::min<size_t>(body.size() - at, 5000);
    absl::StrAppend(&bytes, absl::Hex(size), random() % 8 == 0 ? ";a=b" : "", "\r\n", body.substr(at, size),
                    "\r\n");
    at += size;
  }
  bytes += "0\r\n";
  for (size_t trailers = random() % 3; trailers > 0; --trailers) bytes += "Trailer: x\r\n";
  return bytes + "\r\n";
}

std::string Malformed(Random& random) {
  const std::string chunked = "POST /quick?0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  switch (random() % 7) {
    case 0:
      return "garbage\r\n\r\n";
    case 1:
      return "GET /quick HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n";
    case 2:
      return chunked + "0\r\nA: " + std::string(70000, 'a') + "\r\n\r\n";
    case 3:
      return chunked + "fffff\r\n";
    case 4:
      return chunked + "zz\r\n";
    case 5:
      return "POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
    default:
      return "GET /quick HTTP/1.1\r\nHost: x\r\n" + std::string(5000, 'a');
  }
}

Plan MakePlan(Random& random) {
  Plan plan;
  const bool deep = random() % 4 == 0;  // past what the server holds of a pipeline
  const size_t requests = deep ? 1000 + random() % 2000 : random() % 40;
  const char* const places[] = {"/quick", "/pool", "/slow", "/stream", "/large", "/watched", "/dropped"};
  for (size_t i = 0; i < requests; ++i) {
    const std::string place = deep ? places[random() % 2] : places[random() % (random() % 8 == 0 ? 7 : 5)];
    plan.watched |= place == "/watched";
    plan.dropped |= place == "/dropped";
    const std::string body(deep || random() % 2 == 0 ? 0 : 1 + random() % 20000, 'b');
    const std::string line = absl::StrCat(place, "?", i, " HTTP/1.1\r\nHost: x\r\n");
    if (body.empty()) {
      absl::StrAppend(&plan.bytes, "GET ", line, "\r\n");
    } else if (random() % 2 == 0) {
      absl::StrAppend(&plan.bytes, "POST ", line, "Content-Length: ", body.size(), "\r\n\r\n", body);
    } else {
      absl::StrAppend(&plan.bytes, "POST ", line, "Transfer-Encoding: chunked\r\n\r\n",
                      Chunked(body, random));
    }
    plan.body_bytes.push_back(body.size());
  }
  plan.malformed = random() % 3 == 0;
  if (plan.malformed) plan.bytes += Malformed(random);
  return plan;
}

struct Answer {
  int status = 0;
  std::string body;
};

// Takes one whole answer off the front; false where there is none yet.
bool TakeAnswer(std::string* bytes, Answer* answer) {
  const size_t head_end = bytes->find("\r\n\r\n");
  if (head_end == std::string::npos) return false;
  const std::string head = bytes->substr(0, head_end + 2);
  size_t at = head_end + 4;
  answer->body.clear();
  EXPECT_TRUE(absl::StartsWith(head, "HTTP/1.1 ") && absl::SimpleAtoi(head.substr(9, 3), &answer->status))
      << head;
  if (const size_t length = head.find("Content-Length: "); length != std::string::npos) {
    const size_t size = std::stoul(head.substr(length + 16));
    if (bytes->size() < at + size) return false;
    answer->body = bytes->substr(at, size);
    at += size;
  } else {
    for (size_t size = 1; size > 0;) {
      const size_t line_end = bytes->find("\r\n", at);
      if (line_end == std::string::npos) return false;
      size = std::stoul(bytes->substr(at, line_end - at), nullptr, 16);
      at = line_end + 2;
      if (bytes->size() < at + size + 2) return false;
      answer->body += bytes->substr(at, size);
      at += size + 2;
    }
  }
  bytes->erase(0, at);
  return true;
}

// One connection from its plan to its end.
class Client {
 public:
  Client(uint16_t port, Random& random, const std::atomic<bool>* stopping)
      : random_(random), plan_(MakePlan(random)), stopping_(stopping), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (random() % 4 == 0) {
      const int small = 64 << 10;
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    }
    sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  ~Client() { close(fd_); }

  void Run() {
    if (!connected_) return;
    const bool half_closes = random_() % 3 == 0;
    // 0: stays to the end; else leaves, in one way or another, once that much has been sent.
    const size_t leaves_at = random_() % 4 == 0 ? 1 + random_() % (plan_.bytes.size() + 1) : 0;
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!closed_ && !Complete()) {
      ASSERT_LT(absl::Now(), deadline) << answers_ << " of " << plan_.body_bytes.size() << " answers";
      if (leaves_at > 0 && sent_ >= leaves_at) return Leave();
      if (sent_ < plan_.bytes.size()) {
        SendSome();
        if (half_closes && sent_ == plan_.bytes.size()) shutdown(fd_, SHUT_WR);
      }
      // Now and then it does not read for a while.
      if (random_() % 8 != 0 || sent_ == plan_.bytes.size()) Receive();
    }
    if (*stopping_ || (half_closes && plan_.watched) || refused_for_load_) return;
    EXPECT_EQ(answers_, plan_.body_bytes.size())
        << (half_closes ? "half-closed" : "") << received_.substr(0, 200);
    EXPECT_EQ(refused_, plan_.malformed);
  }

 private:
  bool Complete() const { return refused_ || (answers_ == plan_.body_bytes.size() && !plan_.malformed); }

  void Leave() {
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    if (random_() % 2 == 0) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }

  void SendSome() {
    const size_t piece = random_() % 3 == 0 ? 1 + random_() % 50 : 1 + random_() % 30000;
    const ssize_t n =
        send(fd_, plan_.bytes.data() + sent_, std::min(piece, plan_.bytes.size() - sent_), MSG_NOSIGNAL);
    if (n > 0) sent_ += static_cast<size_t>(n);
    // Refused, while it was sending: the answer may still be there to be read.
    if (n < 0 && errno != EAGAIN) sent_ = plan_.bytes.size();
  }

  void Receive() {
    pollfd poll_fd = {fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, sent_ < plan_.bytes.size() ? 0 : 50) <= 0) return;
    char bytes[30000];
    const ssize_t n = recv(fd_, bytes, 1 + random_() % sizeof(bytes), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) closed_ = true;
    // A reset may take along what was not yet read of the error's answer.
    if (n < 0 && errno != EAGAIN && plan_.malformed && answers_ == plan_.body_bytes.size()) refused_ = true;
    if (n > 0) received_.append(bytes, static_cast<size_t>(n));
    for (Answer answer; TakeAnswer(&received_, &answer);) Check(answer);
  }

  void Check(const Answer& answer) {
    ASSERT_FALSE(refused_) << "an answer behind an error: " << answer.status << " "
                           << answer.body.substr(0, 200);
    if (answer.status == 200 || (answer.status == 500 && plan_.dropped)) {
      ASSERT_LT(answers_, plan_.body_bytes.size()) << answer.body.substr(0, 200);
      const std::string wanted = absl::StrCat("#", answers_, ":", plan_.body_bytes[answers_], "#");
      ++answers_;
      EXPECT_TRUE(answer.status == 500 || absl::StartsWith(answer.body, wanted))
          << answer.body.substr(0, 200);
      return;
    }
    refused_ = true;
    refused_for_load_ = answer.status == 503;
    if (refused_for_load_) return;
    EXPECT_TRUE(plan_.malformed) << answer.status << " " << answer.body;
    EXPECT_EQ(answers_, plan_.body_bytes.size()) << answer.status << " " << answer.body;
  }

  Random& random_;
  const Plan plan_;
  const std::atomic<bool>* const stopping_;
  const int fd_;
  bool connected_ = false;
  size_t sent_ = 0;
  std::string received_;
  size_t answers_ = 0;
  bool refused_ = false;
  bool refused_for_load_ = false;
  bool closed_ = false;
};

TEST(HttpSequences, AreAnsweredInOrderWhateverClientsDo) {
  const uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  Random random(seed);
  const absl::Time end = absl::Now() + kRunFor;
  std::atomic<int> connections{0};
  for (int round = 0; absl::Now() < end && !::testing::Test::HasFailure(); ++round) {
    HttpServerOptions options;
    options.io_threads = 1 + static_cast<int>(random() % 2);
    options.limits = kLimits;
    options.max_total_body_bytes = random() % 2 == 0 ? 30000 : 1 << 30;
    options.at_once = [](const HttpRequest& request) { return request.path == "/quick"; };
    auto server = HttpServer::Start(options, Handle);
    ASSERT_TRUE(server.ok()) << server.status();
    const uint16_t port = (*server)->port();
    std::atomic<bool> stopping{false}, enough{false};
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&, client_seed = random()] {
        Random own(client_seed);
        while (!enough && !::testing::Test::HasFailure()) {
          Client(port, own, &stopping).Run();
          ++connections;
        }
      });
    }
    absl::SleepFor(absl::Milliseconds(200 + random() % 200));
    const auto stop = [&] { (*server)->Shutdown(absl::Milliseconds(random() % 20)); };
    if (round % 2 == 0) {  // under its clients
      stopping = true;
      stop();
    }
    enough = true;
    for (std::thread& client : clients) client.join();
    stop();
    EXPECT_EQ((*server)->open_connections(), 0);
  }
  std::cout << connections << " connections" << std::endl;
}

}  // namespace
}  // namespace aludel
