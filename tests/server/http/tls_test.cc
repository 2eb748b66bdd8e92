// HTTPS end to end over real sockets, against OpenSSL's own client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/http_server.h"
#include "server/http/tls_context.h"
#include "tests/server/http/make_certificate.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A blocking TLS connection over RawClient's socket.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port, int max_version = 0)
      : socket_(port), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), tls_(nullptr, SSL_free) {
    if (max_version != 0) SSL_CTX_set_max_proto_version(context_.get(), max_version);
    timeval timeout = {.tv_sec = 10};
    setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    tls_.reset(SSL_new(context_.get()));
    static constexpr unsigned char kProtocols[] = "\x02h2\x08http/1.1";
    SSL_set_alpn_protos(tls_.get(), kProtocols, sizeof(kProtocols) - 1);
    SSL_set_fd(tls_.get(), socket_.fd());
    connected_ = SSL_connect(tls_.get()) == 1;
    ERR_clear_error();
  }
  bool connected() const { return connected_; }
  std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(tls_.get(), &name, &size);
    return std::string(reinterpret_cast<const char*>(name), size);
  }
  std::string server_name() const {
    const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(tls_.get()),
                                                             X509_free);
    char name[256] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof(name));
    return name;
  }
  void Send(const std::string& bytes) {
    EXPECT_EQ(SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size())),
              static_cast<int>(bytes.size()));
  }
  std::string ReadUntil(const std::string& text) {
    std::string all;
    char bytes[16384];
    while (!absl::StrContains(all, text)) {
      const int n = SSL_read(tls_.get(), bytes, sizeof(bytes));
      if (n <= 0) break;
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  RawClient socket_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_;
  bool connected_ = false;
};

class Tls : public ::testing::Test {
 protected:
  void StartServer(HttpServerOptions options = {}) {
    std::signal(SIGPIPE, SIG_IGN);  // as every server does (stop_signal.cc): OpenSSL writes to closed sockets
    auto tls = TlsContext::Load(MakeCertificate("first"));
    ASSERT_TRUE(tls.ok()) << tls.status();
    tls_ = *std::move(tls);
    options.tls = tls_.get();
    auto server = HttpServer::Start(options, [](HttpRequest request, HttpResponder responder) {
      if (request.path == "/big") {
        HttpResponse response;
        response.body = std::string(4 << 20, 'x') + "END";
        return responder.Respond(std::move(response));
      }
      responder.StartStream(200, "text/event-stream", {});
      for (int i = 0; i < 100; ++i)
        responder.Write(absl::StrCat("data: ", i, " ", request.body.size(), "\n\n"));
      responder.Finish();
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<TlsContext> tls_;
  std::unique_ptr<HttpServer> server_;
};

// A record is decrypted as a whole. Where unparsed input is at its bound the server takes a part of it, and the rest
// makes no socket readable.
TEST_F(Tls, GoesOnWithTheRestOfARecord) {
  StartServer();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.connected());
  const std::string request = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
  int requests = 0;
  std::string pipelined;
  while (pipelined.size() < 40000) {
    pipelined += request;
    ++requests;
  }
  client.Send(pipelined + "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  // Until the server closes; a server that waits for the socket sends nothing for the client's ten seconds.
  const std::string answers = client.ReadUntil("never");
  int ended = 0;
  for (size_t at = answers.find("data: 99 "); at != std::string::npos;
       at = answers.find("data: 99 ", at + 1)) {
    ++ended;
  }
  EXPECT_EQ(ended, requests + 1);
}

TEST_F(Tls, ServesRequestsAndStreamsOnOneConnection) {
  StartServer();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server_->port(), version);
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.protocol(), "http/1.1");
    const std::string body(200000, 'b');  // many records
    for (int i = 0; i < 3; ++i) {
      client.Send(absl::StrCat("POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                               "\r\n\r\n", body));
      const std::string answer = client.ReadUntil("0\r\n\r\n");
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
      EXPECT_THAT(answer, HasSubstr("data: 99 200000\n\n"));
    }
  }
}

TEST_F(Tls, SendsMoreThanTheSocketTakesAtOnce) {
  StartServer();
  TlsClient client(server_->port());
  client.Send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_GT(client.ReadUntil("END").size(), size_t{4} << 20);
}

TEST_F(Tls, NewConnectionsGetAReloadedCertificateAndOldOnesGoOn) {
  StartServer();
  TlsClient before(server_->port());
  EXPECT_EQ(before.server_name(), "first");
  const TlsFiles renewed = MakeCertificate("second");
  const auto copy = [](const std::string& from, const std::string& to) {
    std::ofstream(to) << std::ifstream(from).rdbuf();
  };
  copy(renewed.certificate, tls_->files().certificate);
  EXPECT_THAT(std::string(tls_->Reload().message()), HasSubstr("key"));  // the old key does not fit
  EXPECT_EQ(TlsClient(server_->port()).server_name(), "first");
  copy(renewed.key, tls_->files().key);
  EXPECT_TRUE(tls_->Reload().ok());
  EXPECT_EQ(TlsClient(server_->port()).server_name(), "second");
  before.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(before.ReadUntil("0\r\n\r\n"), HasSubstr("data: 99 0"));
}

TEST_F(Tls, ClosesOnPlainTextAndOnAHandshakeThatNeverComes) {
  StartServer({.header_timeout = absl::Milliseconds(100)});
  RawClient plain(server_->port());
  plain.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(plain.ReadAll(), Not(HasSubstr("HTTP/1.1")));
  EXPECT_TRUE(plain.closed());
  RawClient silent(server_->port());
  silent.ReadAll();
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(TlsClient(server_->port()).connected());
}

TEST_F(Tls, RefusesOldVersions) {
  StartServer();
  EXPECT_FALSE(TlsClient(server_->port(), TLS1_1_VERSION).connected());
}

TEST(TlsContext, NamesTheFileThatIsUnusable) {
  const TlsFiles good = MakeCertificate("good");
  EXPECT_THAT(std::string(TlsContext::Load({good.certificate, "/dev/zero"}).status().message()),
              HasSubstr("/dev/zero: is a device, want a regular file"));
  EXPECT_THAT(std::string(TlsContext::Load({"/none.crt", good.key}).status().message()),
              StartsWith("/none.crt: no usable certificate"));
  EXPECT_THAT(std::string(TlsContext::Load({good.certificate, good.certificate}).status().message()),
              HasSubstr("no usable key"));
}

}  // namespace
}  // namespace aludel
