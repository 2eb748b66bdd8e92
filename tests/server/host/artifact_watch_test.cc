#include "server/host/artifact_watch.h"

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ArtifactOrigin Version(int number) {
  return {.directory = absl::StrCat("codec/versions/", number),
          .version = absl::StrCat("v", number),
          .manifest_hash = absl::StrCat("hash", number)};
}

// What is logged from here on goes into `text` until it goes.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_;
};

// A watch that looks all the time, and whose loads answer as they are told to: the last answer again and again.
class Watch : public ::testing::Test {
 protected:
  Watch() { std::filesystem::create_directories(files_.File("codec/versions")); }

  void Answer(absl::StatusOr<ArtifactOrigin> answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  void Start() {
    watch_ = std::make_unique<ArtifactWatch>(ArtifactWatch::Options{.location = files_.File("codec"),
                                                                    .interval = absl::Milliseconds(1),
                                                                    .origin = Version(1),
                                                                    .load =
                                                                        [this] {
                                                                          absl::MutexLock lock(&mutex_);
                                                                          ++loads_;
                                                                          tried_at_.push_back(looks_);
                                                                          return answer_;
                                                                        },
                                                                    .tend =
                                                                        [this] {
                                                                          absl::MutexLock lock(&mutex_);
                                                                          ++looks_;
                                                                        },
                                                                    .held = [] { return 1; }},
                                             &metrics_);
  }
  // Ends its thread, so that the log can be read.
  void Stop() { watch_.reset(); }
  void AwaitLoads(int loads) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return loads_ >= loads; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1)));
  }
  void AwaitLooks(int more) {
    absl::MutexLock lock(&mutex_);
    const int until = looks_ + more;
    const auto reached = [&] { return looks_ >= until; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1)));
  }
  int loads() {
    absl::MutexLock lock(&mutex_);
    return loads_;
  }
  std::string Count(const std::string& result) {
    const std::string series = absl::StrCat("aludel_artifact_switches_total{result=\"", result, "\"} ");
    const std::string text = metrics_.Render();
    const size_t at = text.find(series);
    if (at == std::string::npos) return "none";
    const size_t begin = at + series.size();
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  const Log log_;
  const TemporaryDirectory files_;
  Metrics metrics_;
  absl::Mutex mutex_;
  absl::StatusOr<ArtifactOrigin> answer_ ABSL_GUARDED_BY(mutex_) = Version(1);
  int loads_ ABSL_GUARDED_BY(mutex_) = 0;
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int> tried_at_ ABSL_GUARDED_BY(mutex_);  // looks behind it then
  std::unique_ptr<ArtifactWatch> watch_;
};

TEST_F(Watch, SaysNothingWhereNothingWasPublished) {
  Start();
  AwaitLoads(1);
  AwaitLooks(2);
  Stop();
  EXPECT_EQ(log_.text(), "");
  EXPECT_EQ(Count("switched"), "0");
}

TEST_F(Watch, ASwitchIsToldOnce) {
  Answer(Version(2));
  Start();
  AwaitLoads(1);
  AwaitLooks(1);
  watch_->Poke();
  AwaitLoads(2);
  AwaitLooks(1);
  EXPECT_EQ(Count("switched"), "1");
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_artifact_info{manifest=\"hash2\",version=\"v2\"} 1"));
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("\"v1\"")));
  Stop();
  EXPECT_THAT(log_.text(),
              HasSubstr("artifact codec/versions/2 is used from now on, in place of codec/versions/1"));
}

TEST_F(Watch, ARefusalIsFinalUntilSomethingChanges) {
  Answer(absl::DataLossError("it is torn"));
  Start();
  AwaitLoads(1);
  AwaitLooks(5);
  EXPECT_EQ(loads(), 1);
  EXPECT_EQ(Count("refused"), "1");
  Stop();
  EXPECT_THAT(log_.text(), HasSubstr("it is torn"));
}

TEST_F(Watch, ADeferredOneThatIsRefusedAfterAllIsLogged) {
  Answer(absl::AbortedError("older ones are used"));
  Start();
  AwaitLoads(4);
  EXPECT_EQ(Count("deferred"), "1") << "once, however often it is tried";
  Answer(absl::DataLossError("it was torn meanwhile"));
  AwaitLooks(4);
  EXPECT_EQ(Count("refused"), "1");
  Stop();
  EXPECT_THAT(log_.text(), HasSubstr("it was torn meanwhile"));
  const std::string once = log_.text();
  EXPECT_EQ(once.find("older ones are used"), once.rfind("older ones are used"));
}

TEST_F(Watch, WhatFailsForNowIsTriedAgainAtFewerAndFewerLooks) {
  Answer(absl::ResourceExhaustedError("the GPU is full"));
  Start();
  AwaitLoads(5);
  {
    absl::MutexLock lock(&mutex_);
    std::vector<int> waits;
    for (size_t i = 1; i < 5; ++i) waits.push_back(tried_at_[i] - tried_at_[i - 1]);
    // Loads at a look come behind its tend, but for the first one.
    EXPECT_EQ(waits, (std::vector<int>{2, 2, 4, 8}));
  }
  EXPECT_EQ(Count("deferred"), "1");
  EXPECT_EQ(Count("refused"), "0");
  Answer(absl::UnavailableError("artifact.json: Input/output error"));
  watch_->Poke();
  const int before = loads();
  AwaitLoads(before + 2);
  Answer(Version(2));
  watch_->Poke();
  AwaitLooks(2);
  EXPECT_EQ(Count("switched"), "1");
  Stop();
  EXPECT_THAT(log_.text(), HasSubstr("the GPU is full"));
  EXPECT_THAT(log_.text(), HasSubstr("Input/output error"));
}

TEST_F(Watch, VersionsThatAreGoneLeaveRoomForOthers) {
  Start();
  for (int version = 2; version < 2 * Metrics::kMaxLabelValues; ++version) {
    Answer(Version(version));
    watch_->Poke();
    AwaitLooks(2);
  }
  const std::string last = absl::StrCat("version=\"v", 2 * Metrics::kMaxLabelValues - 1, "\"} 1");
  EXPECT_THAT(metrics_.Render(), HasSubstr(last));
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("\"other\"")));
}

}  // namespace
}  // namespace aludel
