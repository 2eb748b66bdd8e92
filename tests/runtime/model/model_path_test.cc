#include "runtime/model/model_path.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

TEST(ModelPath, SplitsAtAPlusBetweenDirectories) {
  const TemporaryDirectory root;
  const std::string base = root.File("c++/base"), adapter = root.File("a+b");
  std::filesystem::create_directories(base);
  std::filesystem::create_directories(adapter);
  EXPECT_EQ(ModelPath::Parse(base).base, base);
  EXPECT_EQ(ModelPath::Parse(base).adapter, "");
  const ModelPath both = ModelPath::Parse(base + "+" + adapter);
  EXPECT_EQ(both.base, base);
  EXPECT_EQ(both.adapter, adapter);
  EXPECT_EQ(both.Text(), base + "+" + adapter);
  EXPECT_EQ(both.Name(), "base+a+b");
}

TEST(ModelPath, BlamesTheAdapterWhereOnlyTheBaseExists) {
  const TemporaryDirectory root;
  const ModelPath path = ModelPath::Parse(root.path() + "+no/such");
  EXPECT_EQ(path.base, root.path());
  EXPECT_EQ(path.adapter, "no/such");
  EXPECT_EQ(ModelPath::Parse("no/such+other").base, "no/such+other");
}

TEST(ModelPath, AForgottenAdapterIsNotTheBase) {
  const TemporaryDirectory root;
  const ModelPath path = ModelPath::Parse(root.path() + "+");
  EXPECT_EQ(path.base, root.path() + "+");
  EXPECT_EQ(path.adapter, "");
}

TEST(ModelPath, IsNamedByItsLastParts) {
  EXPECT_EQ(ModelPath("models/chat/").Name(), "chat");
  EXPECT_EQ(ModelPath("models/chat/", "tunes/json/").Name(), "chat+json");
}

}  // namespace
}  // namespace aludel
