#include "server/decode/constraint_cache.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/runtime/text/constrain/byte_tokenizer.h"

namespace aludel {
namespace {

class ConstraintCacheTest : public ::testing::Test {
 protected:
  ConstraintCache::Cache::Result Get(const std::string& schema) {
    std::promise<ConstraintCache::Cache::Result> done;
    const auto wait =
        cache_.Make([&](ConstraintCache::Cache::Result result) { done.set_value(std::move(result)); });
    cache_.Begin(wait, {"", schema, ""}, absl::InfiniteFuture());
    return done.get_future().get();
  }

  const ByteTokenizer tokenizer_;
  ConstraintCache cache_{&tokenizer_, {ByteTokenizer::kEnd}, tokenizer_.vocab_size()};
};

TEST_F(ConstraintCacheTest, SharesOneAutomatonAmongRequests) {
  const auto first = Get(R"({"type":"null"})");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *Get(R"({"type":"null"})"));
  EXPECT_NE(*first, *Get(R"({"type":"boolean"})"));
}

TEST_F(ConstraintCacheTest, SaysWhatCannotBeEnforced) {
  EXPECT_TRUE(absl::IsInvalidArgument(Get(R"({"type":"text"})").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Get(R"({"type":"string","maxLength":900000})").status()));
  std::string schema = "{\"anyOf\":[true";
  for (int i = 0; i < 6000; ++i) schema += ",{\"maxLength\":" + std::to_string(i % 7 + 1) + "}";
  const absl::Status status = Get(schema + "]}").status();
  EXPECT_EQ(status.ToString(),
            "FAILED_PRECONDITION: the schema leaves more than 4096 ways open for how a text begins");
}

}  // namespace
}  // namespace aludel
