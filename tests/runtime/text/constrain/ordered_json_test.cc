#include "runtime/text/constrain/ordered_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/stop_scope.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

std::string Fault(absl::string_view text, int max_depth = kMaxDepth) {
  const auto value = ParseOrdered(text, max_depth);
  EXPECT_TRUE(value.ok() || absl::IsInvalidArgument(value.status())) << value.status();
  return std::string(value.status().message());
}

std::string Repeat(int count, const std::string& item) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", item);
  return text;
}

TEST(OrderedJson, KeepsTheOrderOfMembers) {
  for (const char* text :
       {R"({"b":{"z":1,"a":[-2,0.5,"x\n",true,null,{}]},"a":[]})", "[]", "7", "\"\\u00e9\"", "null"}) {
    const auto value = ParseOrdered(text);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(*value, nlohmann::ordered_json::parse(text));
    EXPECT_EQ(value->dump(), nlohmann::ordered_json::parse(text).dump());
  }
}

TEST(OrderedJson, RefusesAKeyThatIsThereTwiceAndSaysWhere) {
  EXPECT_EQ(Fault(R"({"tools":{},"tools":[]})"), R"(holds the key "tools" twice in one object)");
  EXPECT_EQ(Fault(R"([{"a":0},{"a":[1,{"b":1,"c":{},"b":2}]}])"),
            R"(holds the key "b" twice in one object at [1].a[1])");
  EXPECT_EQ(Fault(R"({"a":{"x":1},"b":{"x":1}})"), "");
  EXPECT_EQ(Fault(R"({"a":1,"\u0061":2})"), R"(holds the key "a" twice in one object)");
  std::string many;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&many, "\"k", i, "\":0,");
  EXPECT_EQ(Fault(absl::StrCat("{", many, "\"k7\":1}")), R"(holds the key "k7" twice in one object)");
  EXPECT_EQ(Fault(absl::StrCat("{", many, "\"k100\":1}")), "");
  const std::string longest(10000, 'x');
  EXPECT_LT(Fault(absl::StrCat("{\"", longest, "\":1,\"", longest, "\":1}")).size(), 200);
}

TEST(OrderedJson, BoundsMembersLevelsAndContainers) {
  std::string members;
  for (size_t i = 0; i < kMaxMembers; ++i) absl::StrAppend(&members, i == 0 ? "" : ",", "\"k", i, "\":0");
  EXPECT_EQ(Fault(absl::StrCat("{", members, "}")), "");
  EXPECT_EQ(Fault(absl::StrCat("{\"a\":{", members, ",\"more\":0}}")),
            "holds an object of more than 1024 members at a");
  EXPECT_EQ(Fault(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_EQ(Fault(std::string(65, '[') + std::string(65, ']')), "is nested deeper than 64 levels");
  EXPECT_EQ(Fault(std::string(200000, '['), 128), "is nested deeper than 128 levels");
  EXPECT_EQ(Fault(absl::StrCat("[", Repeat(kMaxContainers - 1, "[]"), "]")), "");
  EXPECT_EQ(Fault(absl::StrCat("[", Repeat(kMaxContainers, "[]"), "]")),
            "holds more than 131072 objects and lists");
}

TEST(OrderedJson, SaysWhereATextIsNoJson) {
  EXPECT_EQ(Fault(R"({"model": )"), "is no JSON; the fault is at byte 11");
  EXPECT_THAT(Fault(""), HasSubstr("is no JSON"));
  EXPECT_THAT(Fault("{} x"), HasSubstr("is no JSON"));
  EXPECT_THAT(Fault("\"\xff\""), HasSubstr("is no JSON"));
  EXPECT_EQ(Fault("[1e999]"), "holds a number that is too large");
}

// A parser that looks members up while it reads takes 19 s for the first of these.
TEST(OrderedJson, CostsWhatItsBytesCost) {
  std::string wide = "{\"tools\":{";
  for (int i = 0; i < 80000; ++i) absl::StrAppend(&wide, i == 0 ? "" : ",", "\"k", i, "\":0");
  wide += "},\"tools\":[]}";
  std::string objects = "[";
  std::string members;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&members, i == 0 ? "" : ",", "\"k", i, "\":0");
  for (int i = 0; i < 400; ++i) absl::StrAppend(&objects, i == 0 ? "" : ",", "{", members, "}");
  objects += "]";
  for (const std::string& text : {wide, objects}) {
    const double start = ThreadCpuSeconds();
    ParseOrdered(text).status().IgnoreError();
    EXPECT_LT(ThreadCpuSeconds() - start, 2) << text.size();
  }
}

TEST(OrderedJson, EndsWhenItsWorkIsStopped) {
  std::stop_source source;
  const StopScope scope(source.get_token());
  EXPECT_TRUE(ParseOrdered("[[1]]").ok());
  source.request_stop();
  EXPECT_TRUE(absl::IsCancelled(ParseOrdered("[[1]]").status()));
}

}  // namespace
}  // namespace aludel
