#include "server/rpc/discovery/target_watch.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/discovery/dns_lookup.h"
#include "tests/server/rpc/discovery/fake_dns.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr WatchTiming kOften = {
    .file_interval = absl::Milliseconds(10), .least = absl::Milliseconds(20), .most = absl::Milliseconds(40)};

// What a watch has told.
class Heard {
 public:
  TargetWatch::Listener Listener() {
    return [this](const std::vector<ServerName>& servers) {
      absl::MutexLock lock(&mutex_);
      servers_ = servers;
      ++times_;
    };
  }
  std::vector<std::string> targets() {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> targets;
    for (const ServerName& server : servers_) targets.push_back(server.target);
    return targets;
  }
  std::vector<ServerName> servers() {
    absl::MutexLock lock(&mutex_);
    return servers_;
  }
  // What it told last, once that has so many servers.
  std::vector<std::string> Await(size_t servers) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return times_ > 0 && servers_.size() == servers;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(10));
    std::vector<std::string> targets;
    for (const ServerName& server : servers_) targets.push_back(server.target);
    return targets;
  }
  int times() {
    absl::MutexLock lock(&mutex_);
    return times_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<ServerName> servers_ ABSL_GUARDED_BY(mutex_);
  int times_ ABSL_GUARDED_BY(mutex_) = 0;
};

class TargetWatchFile : public ::testing::Test {
 protected:
  TargetWatchFile() : path_(::testing::TempDir() + "/targets-" + std::to_string(getpid())) {}
  ~TargetWatchFile() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  const std::string path_;
  Heard heard_;
};

TEST_F(TargetWatchFile, IsReadAgain) {
  Write("a:1\n# not this one\n\n  b:2  # nor this\nnonsense\n");
  const TargetWatch watch({"c:3", "file:" + path_, "a:1"}, heard_.Listener(), kOften);
  EXPECT_THAT(heard_.Await(3), ElementsAre("c:3", "a:1", "b:2"));
  Write("d:4\n");
  const absl::Time until = MonotonicNow() + absl::Seconds(10);
  while (heard_.targets() != std::vector<std::string>({"c:3", "d:4", "a:1"}) && MonotonicNow() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(heard_.targets(), ElementsAre("c:3", "d:4", "a:1"));
  Write("");
  EXPECT_THAT(heard_.Await(2), ElementsAre("c:3", "a:1"));
}

TEST_F(TargetWatchFile, OneThatIsGoneKeepsItsServers) {
  Write("a:1\nb:2\n");
  const TargetWatch watch({"file:" + path_}, heard_.Listener(), kOften);
  heard_.Await(2);
  const int times = heard_.times();
  std::filesystem::remove(path_);
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_THAT(heard_.targets(), ElementsAre("a:1", "b:2"));
  EXPECT_EQ(heard_.times(), times);
  Write("b:2\n");
  EXPECT_THAT(heard_.Await(1), ElementsAre("b:2"));
}

TEST_F(TargetWatchFile, OneThatIsBeingWrittenLosesNoServer) {
  Write("a:1\nb:2\n");
  const TargetWatch watch({"file:" + path_}, heard_.Listener(), {.file_interval = absl::Milliseconds(400)});
  heard_.Await(2);
  // Read three times at least, and never the same twice.
  const absl::Time until = MonotonicNow() + absl::Milliseconds(1600);
  for (int i = 0; MonotonicNow() < until; ++i) {
    Write(absl::StrCat(i % 2 == 0 ? "a:1\n" : "", "# ", i));
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(heard_.times(), 1);
  Write("a:1\n");
  EXPECT_THAT(heard_.Await(1), ElementsAre("a:1"));
}

TEST_F(TargetWatchFile, OneThatNeverWasHasNone) {
  const TargetWatch watch({"file:/nothing/here"}, heard_.Listener(), kOften);
  EXPECT_THAT(heard_.Await(0), IsEmpty());
  EXPECT_EQ(heard_.times(), 1);
}

TEST(TargetWatchDns, EveryAddressIsAServerAndIsAskedForAgain) {
  FakeDns dns;
  dns.Set("decode.test", {"10.0.0.2", "10.0.0.1"});
  Heard heard;
  const TargetWatch watch({dns.Target("decode.test", 7200)}, heard.Listener(), kOften);
  EXPECT_THAT(heard.Await(2), ElementsAre("10.0.0.1:7200", "10.0.0.2:7200"));
  EXPECT_EQ(heard.servers()[0].tls_name, "decode.test");  // a certificate names the name
  dns.Set("decode.test", {"10.0.0.2", "10.0.0.1", "10.0.0.3"});
  EXPECT_THAT(heard.Await(3), ElementsAre("10.0.0.1:7200", "10.0.0.2:7200", "10.0.0.3:7200"));
  dns.Set("decode.test", {"10.0.0.3"});
  EXPECT_THAT(heard.Await(1), ElementsAre("10.0.0.3:7200"));
}

bool AwaitQuestions(const FakeDns& dns, int questions) {
  const absl::Time until = MonotonicNow() + absl::Seconds(30);
  while (dns.questions() < questions && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(5));
  return dns.questions() >= questions;
}

TEST(TargetWatchDns, AServerOfTwoFamiliesIsOneAndStaysWhereOneQuestionFails) {
  FakeDns dns;
  dns.Set("decode.test", {"10.0.0.1"});
  dns.SetV6("decode.test", {"fd00::1"});
  Heard heard;
  const TargetWatch watch({dns.Target("decode.test", 7200)}, heard.Listener(), kOften);
  EXPECT_THAT(heard.Await(1), ElementsAre("10.0.0.1:7200"));
  dns.FailV4(true);
  ASSERT_TRUE(AwaitQuestions(dns, dns.questions() + 6));
  EXPECT_THAT(heard.targets(), ElementsAre("10.0.0.1:7200"));
  EXPECT_EQ(heard.times(), 1);
}

TEST(TargetWatchDns, ANameMayHaveIpv6Alone) {
  FakeDns dns;
  dns.SetV6("decode.test", {"fd00::2", "fd00::1"});
  Heard heard;
  const TargetWatch watch({dns.Target("decode.test", 7200)}, heard.Listener(), kOften);
  EXPECT_THAT(heard.Await(2), ElementsAre("[fd00::1]:7200", "[fd00::2]:7200"));
}

TEST(TargetWatchDns, AnAnswerOfNoTimeToLiveIsOld) {
  FakeDns dns;
  dns.Set("decode.test", {"10.0.0.1"});
  const auto ttl = [&] {
    const absl::StatusOr<DnsAnswer> answer =
        LookUp(*ParseDnsName(dns.Target("decode.test", 1)), absl::Seconds(10), [] { return false; });
    return answer.ok() ? answer->ttl : absl::InfiniteDuration();
  };
  dns.SetTtl(0);
  EXPECT_EQ(ttl(), absl::ZeroDuration());
  dns.SetTtl(7);
  EXPECT_EQ(ttl(), absl::Seconds(7));
}

TEST(TargetWatchDns, ADeadNameHoldsNothingElseUp) {
  FakeDns dead, dns;
  dead.Mute(true);
  dns.Set("decode.test", {"10.0.0.1"});
  Heard heard;
  const absl::Time begin = MonotonicNow();
  const TargetWatch watch({dns.Target("decode.test", 1), dead.Target("decode.test", 1), "c:3"},
                          heard.Listener(), kOften);
  EXPECT_THAT(heard.Await(2), ElementsAre("10.0.0.1:1", "c:3"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(3)) << "as long as a question to the dead one takes";
}

TEST(TargetWatchDns, AnOutageKeepsTheServers) {
  FakeDns dns;
  dns.Set("decode.test", {"10.0.0.1"});
  Heard heard;
  const TargetWatch watch({dns.Target("decode.test", 7200)}, heard.Listener(), kOften);
  heard.Await(1);
  dns.Set("decode.test", {});  // no such name
  const int questions = dns.questions();
  ASSERT_TRUE(AwaitQuestions(dns, questions + 6));
  EXPECT_THAT(heard.targets(), ElementsAre("10.0.0.1:7200"));
  EXPECT_EQ(heard.times(), 1);
  dns.Set("decode.test", {"10.0.0.1", "10.0.0.2"});
  heard.Await(2);
}

TEST(TargetWatchDns, IsDestroyedWhileNothingAnswers) {
  FakeDns dns;
  dns.Mute(true);
  const absl::Time begin = MonotonicNow();
  {
    Heard heard;
    const TargetWatch watch({dns.Target("decode.test", 7200)}, heard.Listener(), kOften);
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_EQ(heard.times(), 0);
  }
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(3));
}

TEST(ParseDnsName, TakesGrpcsForms) {
  const auto parts = [](const char* target) {
    const absl::StatusOr<DnsName> name = ParseDnsName(target);
    return name.ok() ? absl::StrCat(name->server, " ", name->host, " ", name->port) : "no";
  };
  EXPECT_EQ(parts("dns:///decode.svc:7200"), " decode.svc 7200");
  EXPECT_EQ(parts("dns:decode:7200"), " decode 7200");
  EXPECT_EQ(parts("dns:///[fd00::1]:7200"), " fd00::1 7200");
  EXPECT_EQ(parts("dns://10.0.0.10:53/decode:7200"), "10.0.0.10:53 decode 7200");
  for (const char* bad : {"dns:///decode", "dns:///fd00::1", "dns:///[fd00::1]", "dns:///[d:1", "dns:///:1",
                          "dns://decode:1", "dns:///decode:", "dns:///d:x", "d:1"}) {
    EXPECT_EQ(parts(bad), "no") << bad;
  }
}

}  // namespace
}  // namespace aludel
