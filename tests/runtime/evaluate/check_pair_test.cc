#include "runtime/evaluate/check_pair.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/calibrate/calibration_setup.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kBase[] = "deploy/demo/base";

// The demo's chat model without weights, with `changes` in its config.
class OtherModel {
 public:
  OtherModel(std::initializer_list<std::pair<const char*, int>> changes) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy(std::string("deploy/demo/chat/") + name, files_.File(name));
    }
    std::ifstream original("deploy/demo/chat/config.json");
    nlohmann::json config = nlohmann::json::parse(original);
    for (const auto& [name, value] : changes) config[name] = value;
    files_.Write("config.json", config.dump());
  }
  const std::string& path() const { return files_.path(); }

 private:
  TemporaryDirectory files_;
};

TEST(CheckPair, GivesTheContextThatBothHold) {
  EXPECT_EQ(CheckPair(kBase, "deploy/demo/chat")->max_positions, 1024);
  const OtherModel shorter{{"max_position_embeddings", 512}};
  EXPECT_EQ(CheckPair(kBase, shorter.path())->max_positions, 512);
  EXPECT_EQ(CheckPair(shorter.path(), kBase)->max_positions, 512);
}

TEST(CheckPair, NamesEverythingThatDiffers) {
  const OtherModel other{{"num_hidden_layers", 6}, {"num_key_value_heads", 2}};
  const absl::Status status = CheckPair(kBase, other.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(kBase), HasSubstr(other.path()), HasSubstr("layers is 8, want 6"),
                    HasSubstr("kv_heads is 4, want 2"), Not(HasSubstr("vocab"))));
}

TEST(CheckPairs, CalibrationAsksAllOfItsConsumers) {
  CalibrateJob job;
  job.producer = kBase;
  job.consumers = {"deploy/demo/chat", "deploy/demo/base+deploy/demo/json"};
  EXPECT_EQ(CheckPairs(job)->max_positions, 1024);
  const OtherModel shorter{{"max_position_embeddings", 256}}, fewer{{"num_hidden_layers", 7}},
      narrow{{"hidden_size", 128}};
  job.consumers.push_back(shorter.path());
  EXPECT_EQ(CheckPairs(job)->max_positions, 256);
  job.consumers.back() = fewer.path();
  EXPECT_THAT(std::string(CheckPairs(job).status().message()), HasSubstr("layers is 8, want 7"));
  job.consumers.back() = narrow.path();
  EXPECT_THAT(std::string(CheckPairs(job).status().message()),
              HasSubstr("hidden_size of " + narrow.path() + " is 128, of deploy/demo/base 256"));
}

}  // namespace
}  // namespace aludel
