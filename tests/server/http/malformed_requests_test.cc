// A corpus of hostile and malformed HTTP, each with the status it must get, and a server that goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http/http_server.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

struct Malformed {
  std::string bytes;
  int status;  // 0: closed without a word
};

std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::vector<Malformed> Corpus() {
  using std::string_literals::operator""s;
  const std::string host = "Host: x\r\n";
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  return {
      // Request lines.
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400},  // TLS on the plain port
      {"GET\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n" + host + "\r\n", 400},
      {"GET / HTTP/2.0\r\n" + host + "\r\n", 400},
      {"GET / http/1.1\r\n" + host + "\r\n", 400},
      {"GET  / HTTP/1.1\r\n" + host + "\r\n", 400},
      {"G\x01T / HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /\x00 HTTP/1.1\r\n"s + host + "\r\n", 400},
      {"GET relative HTTP/1.1\r\n" + host + "\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 431},
      // Headers.
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "no colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + ": empty name\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "a b: space in name\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A : space before colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A: nul\x00byte\r\n\r\n"s, 400},
      {"GET / HTTP/1.1\n" + host + "\r\n", 400},  // bare line feed
      {"GET / HTTP/1.1\r\n" + host + "A: bare\rreturn\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A: " + std::string(20000, 'a') + "\r\n\r\n", 431},
      {"GET / HTTP/1.1\r\n" + host + Repeat("A: b\r\n", 5000) + "\r\n", 431},
      // Bodies, and what smuggles requests past a proxy.
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 1e3\r\n\r\n", 400},
      {post + "Content-Length: 0x10\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: 18446744073709551615\r\n\r\n", 413},
      {post + "Content-Length: 2000000\r\n\r\n", 413},
      {post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: identity\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n2\r\nabX\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n200000\r\n", 413},
      // Strange, and allowed.
      {"\r\n\r\nGET / HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", 200},
      {"get / HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", 200},
      {"GET http://x/ HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", 200},
      {"OPTIONS * HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", 200},
      {"GET / HTTP/1.0\r\n\r\n", 200},
      {post + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\nTrailer: t\r\n\r\n",
       200},
  };
}

class MalformedRequests : public ::testing::Test {
 protected:
  MalformedRequests() {
    HttpServerOptions options;
    options.limits.max_body_bytes = 1 << 20;
    options.header_timeout = absl::Milliseconds(500);
    options.body_timeout = absl::Milliseconds(500);
    server_ =
        *HttpServer::Start(options, [](HttpRequest, HttpResponder responder) { responder.Respond({}); });
  }
  std::unique_ptr<HttpServer> server_;
};

TEST_F(MalformedRequests, GetTheirStatusAndAClosedConnection) {
  for (const Malformed& one : Corpus()) {
    const std::string shown = absl::CHexEscape(one.bytes.substr(0, 120));
    RawClient client(server_->port());
    client.Send(one.bytes);
    const std::string answer = client.ReadAll();
    EXPECT_TRUE(client.closed()) << shown;
    EXPECT_TRUE(absl::StartsWith(answer, absl::StrCat("HTTP/1.1 ", one.status, " ")) ||
                absl::StartsWith(answer, absl::StrCat("HTTP/1.0 ", one.status, " ")))
        << shown << "\nwas answered " << answer.substr(0, 80) << ", want " << one.status;
    EXPECT_EQ(answer.find("\nHTTP/1."), std::string::npos) << shown << "\nwas answered twice";
  }
}

TEST_F(MalformedRequests, LeaveNothingBehindWhenTheyAreCutAnywhere) {
  std::mt19937 random(1);
  const std::vector<Malformed> corpus = Corpus();
  for (int i = 0; i < 300; ++i) {
    std::string bytes = corpus[random() % corpus.size()].bytes;
    bytes.resize(random() % (std::min<size_t>(bytes.size(), 400) + 1));
    for (int flips = static_cast<int>(random() % 4); flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RawClient(server_->port()).Send(bytes);  // and gone
  }
  RawClient client(server_->port());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(client.ReadAll(), "HTTP/1.1 200 OK\r\n"));
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (server_->open_connections() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(server_->open_connections(), 0);
}

}  // namespace
}  // namespace aludel
