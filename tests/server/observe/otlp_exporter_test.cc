#include "server/observe/otlp_exporter.h"

#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/http/http_server.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// A collector that keeps what it takes, or holds every request unanswered, and what the exporter logs.
class OtlpExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = HttpServer::Start({}, [this](HttpRequest request, HttpResponder responder) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (status_ == 0) return held_.push_back(std::move(responder));
      peers_.insert(request.peer);
      bodies_.push_back(std::move(request.body));
      HttpResponse response;
      response.status = status_;
      response.body = "{}";
      responder.Respond(std::move(response));
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    options_.endpoint = absl::StrCat("http://127.0.0.1:", server_->port(), "/v1/traces");
    options_.service = "test";
    options_.interval = absl::Milliseconds(5);
    before_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_, /*force_flush=*/true)));
  }
  void TearDown() override {
    exporter_.reset();
    spdlog::set_default_logger(before_);
    server_.reset();
  }
  void Answer(int status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
  }
  void Start() { exporter_ = std::make_unique<OtlpExporter>(options_, &metrics_); }
  void Export(const std::string& name) {
    Span span;
    span.context = TraceContext::NewTrace(1);
    span.name = name;
    exporter_->Export(std::move(span));
  }
  int64_t Spans(const std::string& result) {
    const std::string text = metrics_.Render();
    const std::string line = absl::StrCat("aludel_trace_spans_total{result=\"", result, "\"} ");
    const size_t at = text.find(line);
    return at == std::string::npos ? 0 : std::stoll(text.substr(at + line.size()));
  }
  void WaitFor(const std::string& result, int64_t spans) {
    for (int i = 0; i < 1000 && Spans(result) < spans; ++i) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(Spans(result), spans);
  }

  OtlpExporter::Options options_;
  Metrics metrics_;
  std::mutex mutex_;
  int status_ = 200;  // 0: none
  std::set<std::string> peers_;
  std::vector<std::string> bodies_;
  std::vector<HttpResponder> held_;
  std::ostringstream log_;
  std::shared_ptr<spdlog::logger> before_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<OtlpExporter> exporter_;
};

TEST_F(OtlpExporterTest, SendsBatchesOverOneConnection) {
  Start();
  for (int i = 1; i <= 3; ++i) {
    Export(absl::StrCat("span ", i));
    WaitFor("exported", i);
  }
  exporter_.reset();
  ASSERT_EQ(bodies_.size(), 3u);
  EXPECT_EQ(peers_.size(), 1u);
  const auto json = nlohmann::json::parse(bodies_[2]);
  EXPECT_EQ(json["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"], "span 3");
}

TEST_F(OtlpExporterTest, SaysOnceWhyACollectorTakesNothing) {
  Answer(503);
  Start();
  Export("a");
  WaitFor("failed", 1);
  Export("b");
  WaitFor("failed", 2);
  Answer(200);
  Export("c");
  WaitFor("exported", 1);
  exporter_.reset();
  const std::string log = log_.str();
  EXPECT_THAT(log, HasSubstr("does not take spans: HTTP status 503"));
  EXPECT_EQ(log.find("does not take"), log.rfind("does not take"));
  EXPECT_THAT(log, HasSubstr("takes spans again"));
}

TEST_F(OtlpExporterTest, SaysThatNobodyListens) {
  options_.endpoint = "http://127.0.0.1:1/v1/traces";
  Start();
  Export("a");
  WaitFor("failed", 1);
  exporter_.reset();
  EXPECT_THAT(log_.str(), HasSubstr("does not take spans: connect to 127.0.0.1:1: Connection refused"));
}

TEST_F(OtlpExporterTest, StopsWithinOneTimeoutOfACollectorThatIsSilent) {
  Answer(0);
  options_.timeout = absl::Milliseconds(1500);
  Start();
  Export("a");
  absl::SleepFor(absl::Milliseconds(500));  // on its way
  Export("b");
  const absl::Time begin = absl::Now();
  exporter_.reset();
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(1500));  // two of them would take twice that
  EXPECT_EQ(Spans("failed"), 1);
  EXPECT_EQ(Spans("dropped"), 1);
  EXPECT_THAT(log_.str(), HasSubstr("timed out after 1.5s waiting for an answer"));
}

TEST_F(OtlpExporterTest, DropsWhatTheQueueCannotHold) {
  options_.interval = absl::Seconds(100);
  options_.max_queue = 2;
  Start();
  for (const char* name : {"a", "b", "c"}) Export(name);
  EXPECT_EQ(Spans("dropped"), 1);
  exporter_.reset();  // sends what waits
  EXPECT_EQ(Spans("exported"), 2);
  EXPECT_EQ(bodies_.size(), 1u);
}

}  // namespace
}  // namespace aludel
