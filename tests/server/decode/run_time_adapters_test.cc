#include "server/decode/run_time_adapters.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/model/model_config.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kBase[] = "tests/runtime/model/golden/tiny/llama_sharded";
constexpr char kAdapter[] = "tests/runtime/model/golden/adapters/llama_list";

// A root with one good adapter in it, and one outside of it.
class RunTimeAdapters : public ::testing::Test {
 protected:
  RunTimeAdapters() {
    std::filesystem::create_directories(files_.File("root/team"));
    for (const char* to : {"root/good", "root/team/other", "outside"}) {
      std::filesystem::copy(kAdapter, files_.File(to));
    }
    std::filesystem::create_directory_symlink(files_.File("outside"), files_.File("root/link"));
    options_.served_model_name = "base";
    options_.adapter_root = files_.File("root");
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const AdapterPool::About& about : pool_.known().adapters) names.push_back(about.name);
    return names;
  }
  std::string Add(const std::string& name, const std::string& directory) {
    return std::string(AddAdapter(context_, name, directory).message());
  }

  const TemporaryDirectory files_;
  const std::unique_ptr<Device> device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  AdapterPool pool_{device_.get(), {kBase, "hash", ModelConfig::Load(kBase).value(), DType::kF32}, 2};
  DecodeOptions options_;
  const DecodeContext context_ = {.options = &options_, .adapters = &pool_};
};

TEST_F(RunTimeAdapters, ComeFromBelowTheRootAndGo) {
  EXPECT_EQ(Add("a", "good"), "");
  EXPECT_EQ(Add("b", "team/other"), "");
  EXPECT_EQ(Add("c", files_.File("root/good")), "");
  EXPECT_THAT(Names(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(RemoveAdapter(context_, "b").ok());
  EXPECT_THAT(Names(), ElementsAre("a", "c"));
  EXPECT_EQ(RemoveAdapter(context_, "b").code(), absl::StatusCode::kNotFound);
}

TEST_F(RunTimeAdapters, NothingOutsideOfTheRootIsLookedAt) {
  for (const std::string directory :
       {"../outside", "link", "/etc", ".", "", "good/..", "missing", "good/adapter_config.json"}) {
    const absl::Status status = AddAdapter(context_, "a", directory);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << directory << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not one below adapter_root"));
  }
  EXPECT_EQ(AddAdapter(context_, "a", files_.File("outside")).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(AddAdapter(context_, "a", std::string("good\0x", 6)).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(RunTimeAdapters, NamesAreCheckedAndTaken) {
  EXPECT_THAT(Add("base", "good"), HasSubstr("name of the base"));
  EXPECT_THAT(Add("two words", "good"), HasSubstr("visible ASCII"));
  EXPECT_THAT(Add("", "good"), HasSubstr("want 1 to 256"));
  EXPECT_EQ(Add("a", "good"), "");
  EXPECT_EQ(AddAdapter(context_, "a", "good").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(AddAdapter(context_, "a", files_.File("root/team/../good")).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(RunTimeAdapters, AnotherOfTheSameNameIsNoneThatIsThereAlready) {
  ASSERT_TRUE(AddAdapter(context_, "a", "good", "base").ok());
  for (const auto& [directory, cache_of] :
       {std::pair{"good", ""}, {"good", "adapter"}, {"team/other", "base"}}) {
    const absl::Status status = AddAdapter(context_, "a", directory, cache_of);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("root/good with cache_of \"base\": unload it first"));
  }
  EXPECT_EQ(AddAdapter(context_, "a", "good", "base").code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(RunTimeAdapters, SayWhoseCacheTheyAnswerFrom) {
  EXPECT_THAT(std::string(AddAdapter(context_, "a", "good", "other").message()),
              HasSubstr("cache_of is none of"));
  EXPECT_THAT(std::string(AddAdapter(context_, "a", "good", "base_always").message()),
              HasSubstr("and so the cache"));
  EXPECT_TRUE(AddAdapter(context_, "a", "good", "base").ok());
  EXPECT_TRUE(AddAdapter(context_, "b", "good", "adapter").ok());
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
}

TEST_F(RunTimeAdapters, WithoutARootNoneComeOrGo) {
  ASSERT_TRUE(pool_.Add("a", kAdapter).ok());
  options_.adapter_root.clear();
  EXPECT_EQ(AddAdapter(context_, "b", "good").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RemoveAdapter(context_, "a").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Names(), ElementsAre("a"));
}

}  // namespace
}  // namespace aludel
