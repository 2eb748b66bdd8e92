#include "runtime/text/constrain/schema/schema_keywords.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/text/constrain/json_rules.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

constexpr int64_t kMost = JsonRules::kMaxInteger;
const SchemaPlace kRoot{nullptr, "#"};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(SchemaPlace, WritesItsPathFromTheRoot) {
  const SchemaPlace list{&kRoot, "anyOf"}, second{&list, "", 1}, name{&second, "a"};
  EXPECT_EQ(name.Text(), "#/anyOf/1/a");
  EXPECT_EQ(Message(SchemaError(second, "is wrong")), "#/anyOf/1: is wrong");
}

TEST(SchemaKeywords, TwoThatStandForAWholeSchemaExcludeEachOtherAndAllConstraints) {
  EXPECT_THAT(Message(CheckKeywords({{"enum", {1}}, {"anyOf", ordered_json::array()}}, kRoot)),
              HasSubstr("\"anyOf\" beside \"enum\""));
  EXPECT_THAT(Message(CheckKeywords({{"$ref", "#"}, {"minimum", 1}}, kRoot)),
              HasSubstr("\"minimum\" beside \"$ref\""));
  EXPECT_TRUE(CheckKeywords({{"enum", {1}}, {"type", "integer"}, {"title", "t"}}, kRoot).ok());
  EXPECT_TRUE(CheckKeywords({{"minimum", 1}, {"type", "integer"}, {"items", true}}, kRoot).ok());
}

TEST(SchemaKeywords, ThatRefuseNothingAreNoFault) {
  EXPECT_TRUE(
      CheckKeywords({{"unevaluatedItems", true}, {"dependencies", ordered_json::object()}}, kRoot).ok());
  EXPECT_THAT(Message(CheckKeywords({{"if", true}}, kRoot)), HasSubstr("keyword \"if\" is not supported"));
  EXPECT_FALSE(CheckKeywords({{"unevaluatedProperties", false}}, kRoot).ok());
}

TEST(SchemaKeywords, DivisorsAreWholeAndSmallButForZerosAtTheirEnd) {
  const auto read = [](const ordered_json& value) { return ReadDivisor({{"multipleOf", value}}, kRoot); };
  EXPECT_EQ(*ReadDivisor(ordered_json::object(), kRoot), 1);
  EXPECT_EQ(*read(3.0), 3);
  EXPECT_EQ(*read(102400), 102400);
  for (const ordered_json& value :
       {ordered_json(0), ordered_json(-3), ordered_json(0.01), ordered_json(1025), ordered_json("3")}) {
    EXPECT_THAT(Message(read(value).status()), HasSubstr("want a whole number of at most 1024")) << value;
  }
}

TEST(SchemaKeywords, CountsAreWholeAndInOrder) {
  const auto read = [](const ordered_json& schema) {
    return ReadCounts(schema, "minItems", "maxItems", kRoot);
  };
  EXPECT_EQ(read(ordered_json::object())->least, 0);
  EXPECT_EQ(read(ordered_json::object())->most, -1);
  EXPECT_EQ(read({{"minItems", 2u}, {"maxItems", 3u}})->most, 3);
  EXPECT_THAT(Message(read({{"minItems", 3u}, {"maxItems", 2u}}).status()),
              HasSubstr("minItems is greater than maxItems"));
  EXPECT_THAT(Message(read({{"maxItems", -1}}).status()),
              HasSubstr("maxItems is -1, want a number of things"));
  EXPECT_FALSE(read({{"minItems", uint64_t{1} << 41}}).ok());
  EXPECT_FALSE(read({{"minItems", 1.5}}).ok());
}

TEST(SchemaKeywords, BoundsOfIntegersAreMovedOntoIntegersThatAreAllowed) {
  const auto read = [](const ordered_json& schema) { return ReadNumberBounds(schema, false, kRoot); };
  EXPECT_FALSE(read(ordered_json::object())->given);
  EXPECT_EQ(read(ordered_json::object())->min, -kMost);
  EXPECT_EQ(read({{"minimum", 1.2}})->min, 2);
  EXPECT_EQ(read({{"exclusiveMinimum", 2}})->min, 3);
  EXPECT_EQ(read({{"exclusiveMinimum", 1.2}})->min, 2);
  EXPECT_EQ(read({{"exclusiveMaximum", 2}, {"maximum", 5}})->max, 1);
  EXPECT_EQ(read({{"maximum", 1e300}})->max, kMost);
  EXPECT_THAT(Message(read({{"minimum", 1e300}}).status()), HasSubstr("leave no number"));
  EXPECT_FALSE(read({{"exclusiveMinimum", 2}, {"exclusiveMaximum", 3}}).ok());
  EXPECT_THAT(Message(read({{"minimum", "x"}}).status()), HasSubstr("minimum is \"x\", want a number"));
}

TEST(SchemaKeywords, BoundsOfFractionsKeepWhetherTheyAreAllowedThemselves) {
  const auto read = [](const ordered_json& schema) { return ReadNumberBounds(schema, true, kRoot); };
  const auto open = read({{"exclusiveMinimum", 2}, {"maximum", 3}});
  EXPECT_EQ(open->min, 2);
  EXPECT_FALSE(open->at_min);
  EXPECT_TRUE(open->at_max);
  EXPECT_TRUE(read({{"exclusiveMinimum", 2}, {"exclusiveMaximum", 3}}).ok());
  EXPECT_TRUE(read({{"minimum", 2}, {"maximum", 2}}).ok());
  EXPECT_FALSE(read({{"minimum", 2}, {"exclusiveMaximum", 2}}).ok());
}

TEST(SchemaKeywords, ObjectsWithListedPropertiesAllowNoOthersUnlessTheySaySo) {
  const auto read = [](const ordered_json& schema) { return ReadObject(schema, kRoot); };
  const ordered_json empty = ordered_json::object(), listed = {{"properties", {{"a", true}}}};
  EXPECT_TRUE(read(empty)->any());
  EXPECT_TRUE(read(empty)->open());
  EXPECT_FALSE(read(listed)->any());
  EXPECT_FALSE(read(listed)->open());
  const ordered_json said = {{"properties", {{"a", true}}}, {"additionalProperties", true}};
  EXPECT_TRUE(read(said)->open());
  const ordered_json closed = {{"additionalProperties", false}};
  EXPECT_FALSE(read(closed)->any());
  EXPECT_FALSE(read(closed)->open());
  const ordered_json no_object = {{"properties", 1}}, no_list = {{"required", "a"}};
  EXPECT_THAT(Message(read(no_object).status()), HasSubstr("properties is no object"));
  EXPECT_THAT(Message(read(no_list).status()), HasSubstr("required is no list"));
}

}  // namespace
}  // namespace aludel
