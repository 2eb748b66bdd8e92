// The client over TLS, against the gateway's server.
#include "server/http/client/http_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/http_server.h"
#include "server/http/tls_context.h"
#include "tests/server/http/http_client_fixture.h"
#include "tests/server/http/make_certificate.h"

namespace aludel::http_client_testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The gateway's server, which answers with the connection that a request came over.
class HttpClientOverTls : public ::testing::Test {
 protected:
  void StartServer(const TlsFiles& files) {
    std::signal(SIGPIPE, SIG_IGN);
    tls_ = TlsContext::Load(files).value();
    server_ = HttpServer::Start({.limits = {.max_body_bytes = 64 << 20}, .tls = tls_.get()},
                                [](HttpRequest request, HttpResponder responder) {
                                  responder.StartStream(200, "text/plain", {});
                                  responder.Write(request.peer);
                                  responder.Write(request.body);
                                  responder.Finish();
                                })
                  .value();
  }
  HttpUrl Url(const std::string& host) const {
    return ParseHttpUrl(absl::StrCat("https://", host, ":", server_->port(), "/")).value();
  }
  void TearDown() override { unsetenv("SSL_CERT_FILE"); }

  std::unique_ptr<TlsContext> tls_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpClientOverTls, RefusesWhatItDoesNotTrust) {
  StartServer(MakeCertificate("untrusted", "IP:127.0.0.1"));
  EXPECT_EQ(AskOnce(Url("127.0.0.1")).message(),
            absl::StrCat("TLS with 127.0.0.1:", server_->port(), ": certificate: self-signed certificate"));
  HttpClient insecure({.url = Url("127.0.0.1"), .insecure = true});
  EXPECT_EQ(Ask(&insecure).status, 200);
}

TEST_F(HttpClientOverTls, TakesATrustedCertificateForItsNamesAlone) {
  const TlsFiles files = MakeCertificate("trusted", "IP:127.0.0.1,DNS:localhost");
  setenv("SSL_CERT_FILE", files.certificate.c_str(), 1);
  StartServer(files);
  EXPECT_EQ(AskOnce(Url("127.0.0.1")).error, absl::OkStatus());
  EXPECT_EQ(AskOnce(Url("localhost")).error, absl::OkStatus());
  const TlsFiles other = MakeCertificate("elsewhere", "DNS:elsewhere.example");
  setenv("SSL_CERT_FILE", other.certificate.c_str(), 1);
  StartServer(other);
  EXPECT_THAT(AskOnce(Url("localhost")).message(), HasSubstr("certificate: hostname mismatch"));
  EXPECT_THAT(AskOnce(Url("127.0.0.1")).message(), HasSubstr("certificate: IP address mismatch"));
}

TEST_F(HttpClientOverTls, KeepsConnectionsAndMovesMegabytes) {
  StartServer(MakeCertificate("big"));
  HttpClient client({.url = Url("127.0.0.1"), .insecure = true});
  std::set<std::string> peers;
  const std::string body(900000, 'x');  // within the server's queue for a reader
  for (int i = 0; i < 3; ++i) {
    const Result result = Ask(&client, body);
    EXPECT_EQ(result.error, absl::OkStatus());
    const size_t peer = result.body.find('x');
    peers.insert(result.body.substr(0, peer));
    EXPECT_EQ(result.body.size() - peer, body.size());
  }
  EXPECT_EQ(peers.size(), 1u);
}

TEST_F(HttpClientOverTls, UsesTheLastUsedConnectionFirst) {
  StartServer(MakeCertificate("many"));
  HttpClient client({.url = Url("127.0.0.1"), .insecure = true, .max_connections = 4});
  std::vector<Result> results(8);
  for (Result& result : results) Post(&client, &result);
  while (!absl::c_all_of(results, [](const Result& result) { return result.ended; })) {
    client.RunFor(absl::Seconds(1));
  }
  std::set<std::string> peers;
  for (const Result& result : results) peers.insert(result.body);
  EXPECT_EQ(peers.size(), 4u);
  std::set<std::string> later;
  for (int i = 0; i < 4; ++i) later.insert(Ask(&client).body);
  EXPECT_EQ(later.size(), 1u);
}

TEST_F(HttpClientOverTls, SaysThatAServerSpeaksNoTls) {
  ScriptedServer server({[](Peer* peer) {
    peer->Send("HTTP/1.1 400 Bad Request\r\n\r\n");
    peer->WaitForEnd();
  }});
  HttpUrl url = server.url();
  url.tls = true;
  EXPECT_THAT(AskOnce(url).message(), HasSubstr(": wrong version number"));
}

}  // namespace
}  // namespace aludel::http_client_testing
