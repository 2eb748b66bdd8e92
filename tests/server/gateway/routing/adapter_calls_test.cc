#include "server/gateway/routing/adapter_calls.h"

#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/routing/decode_targets.h"
#include "tests/server/gateway/fake_decode.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A decode server that answers LoadAdapter as it is told to, and notes what it was asked for.
class LoadingDecode : public FakeDecode {
 public:
  // `cache_of`: the response's.
  explicit LoadingDecode(grpc::Status status, std::string cache_of = "")
      : FakeDecode(Hello), status_(std::move(status)), cache_of_(std::move(cache_of)) {}
  ~LoadingDecode() override { Stop(); }

  grpc::Status LoadAdapter(grpc::ServerContext*, const v1::LoadAdapterRequest* request,
                           v1::LoadAdapterResponse* response) override {
    Note("load " + request->name());
    response->set_cache_of(cache_of_);
    return status_;
  }
  grpc::Status UnloadAdapter(grpc::ServerContext*, const v1::UnloadAdapterRequest* request,
                             v1::UnloadAdapterResponse*) override {
    Note("unload " + request->name());
    return grpc::Status::OK;
  }
  std::vector<std::string> asked() {
    std::lock_guard<std::mutex> lock(mutex_);
    return asked_;
  }

 private:
  void Note(std::string call) {
    std::lock_guard<std::mutex> lock(mutex_);
    asked_.push_back(std::move(call));
  }

  const grpc::Status status_;
  const std::string cache_of_;
  std::mutex mutex_;
  std::vector<std::string> asked_;
};

class AdapterCallsTest : public ::testing::Test {
 protected:
  absl::Status Load(const std::vector<LoadingDecode*>& decodes, const std::string& cache_of) {
    Metrics metrics;
    std::vector<std::string> names;
    for (const LoadingDecode* decode : decodes) names.push_back(decode->target());
    const DecodeTargets targets(
        {{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = names}},
        grpc::InsecureChannelCredentials(), &metrics, {});
    v1::LoadAdapterRequest request;
    request.set_name("tune");
    request.set_directory("tunes/tune");
    request.set_cache_of(cache_of);
    return LoadAdapter(targets, "chat", request);
  }
};

TEST_F(AdapterCallsTest, AServerThatHasItAlreadyIsNoFault) {
  LoadingDecode has(grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "there")), has_not({}, "base");
  EXPECT_TRUE(Load({&has, &has_not}, "base").ok());
  EXPECT_EQ(Load({&has}, "base").code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(AdapterCallsTest, AServerThatHasAnotherOfThisNameIsOne) {
  LoadingDecode other(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "with cache_of \"base\"")),
      has_not({});
  for (const std::vector<LoadingDecode*>& order : {std::vector{&other, &has_not}, {&has_not, &other}}) {
    const absl::Status status = Load(order, "");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(other.target() + ": with cache_of"));
  }
}

TEST_F(AdapterCallsTest, AServerThatDoesNotKnowOfCacheOfKeepsNoOther) {
  LoadingDecode older({});
  const absl::Status status = Load({&older}, "base");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("older build, which has no cache_of \"base\""));
  EXPECT_THAT(older.asked(), ElementsAre("load tune", "unload tune"));

  // What it has is what is asked for.
  for (const char* cache_of : {"", "adapter"}) {
    LoadingDecode another({});
    EXPECT_TRUE(Load({&another}, cache_of).ok());
    EXPECT_THAT(another.asked(), ElementsAre("load tune"));
  }
}

}  // namespace
}  // namespace aludel
