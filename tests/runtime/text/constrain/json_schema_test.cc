#include "runtime/text/constrain/text_constraint.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/stop_scope.h"
#include "runtime/text/constrain/ordered_json.h"
#include "tests/runtime/text/constrain/language.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

void Expect(absl::string_view schema, const std::vector<std::string>& in,
            const std::vector<std::string>& out) {
  Language language(schema);
  for (const std::string& text : in) EXPECT_TRUE(language.Has(text)) << schema << " refuses " << text;
  for (const std::string& text : out) EXPECT_FALSE(language.Has(text)) << schema << " accepts " << text;
}

TEST(JsonSchema, AllowsAnyJsonForAnEmptySchema) {
  for (const char* schema : {"{}", "true", R"({"title": "any", "x-note": 1})"}) {
    Expect(schema,
           {"null", "true", "-0.5e+10", "\"a\\u00e9\\n\xc3\xa9\xf0\x9f\x98\x80\"", "[]", "[1, [2,{}]]",
            R"({"a": {"b":[null]}, "": 0})", "{\n  \"a\": 1\n}"},
           {"",     "nul",     "01",    "1.",         ".5",      "+1",       "1e",
            "[1,]", "{\"a\"}", "{a:1}", "\"\n\"",     "\"\\x\"", "\"\xff\"", "\"\\ud800\"",
            " 1",   "1 ",      "[1  ]", "{\"a\":1,}", "'a'",     "1e100",    "1234567890123456"});
  }
  Expect(R"({"type": "object"})", {"{}", R"({"a": [1]})"}, {"[]", "1", "null"});
  Expect(R"({"type": ["string", "null"]})", {"\"a\"", "null"}, {"1", "[]"});
}

TEST(JsonSchema, BoundsStringsByTheirCharacters) {
  Expect(R"({"type": "string", "minLength": 2, "maxLength": 3})",
         {"\"ab\"", "\"abc\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", R"("\n\u0041x")"},
         {"\"a\"", "\"abcd\"", "\"\""});
  Expect(R"({"maxLength": 0})", {"\"\""}, {"\"a\"", "1"});
}

TEST(JsonSchema, BoundsIntegers) {
  const std::vector<std::pair<int64_t, int64_t>> ranges = {
      {0, 0}, {1, 9}, {3, 117}, {-5, 5}, {-120, -7}, {99, 101}, {-1000, 12}, {509, 1311}, {0, 10}};
  for (const auto& [min, max] : ranges) {
    Language language(absl::StrCat(R"({"type": "integer", "minimum": )", min, R"(, "maximum": )", max, "}"));
    Language open(absl::StrCat(R"({"type": "integer", "exclusiveMinimum": )", min - 1,
                               R"(, "exclusiveMaximum": )", max + 1, "}"));
    for (int64_t value = -1500; value <= 1500; ++value) {
      const bool inside = min <= value && value <= max;
      ASSERT_EQ(language.Has(absl::StrCat(value)), inside) << value << " in " << min << " to " << max;
      ASSERT_EQ(open.Has(absl::StrCat(value)), inside) << value << " in " << min << " to " << max;
    }
    EXPECT_FALSE(language.Has("007"));
    EXPECT_FALSE(language.Has("-0"));
  }
  Expect(R"({"type": "integer"})", {"0", "-7", "999999999999999"}, {"1.0", "1e3", "01"});
  Expect(R"({"type": "integer", "minimum": 0.5})", {"1", "20"}, {"0", "-1"});
}

TEST(JsonSchema, BoundsNumbers) {
  Expect(R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "1", "0.5", "0.001"},
         {"1.1", "-0.1", "2", "0.0"});
  Expect(R"({"type": "number", "exclusiveMinimum": 0})", {"0.1", "1", "12.5"}, {"0", "-1", "-0.5"});
  Expect(R"({"type": "number", "minimum": -2.5, "exclusiveMaximum": 3})",
         {"-2", "-1.5", "-0.5", "0.25", "2.75", "2"}, {"3", "-3", "-2.6", "3.1", "1e0"});
}

TEST(JsonSchema, WritesPropertiesInTheirOrder) {
  Expect(
      R"({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}, "c": {}},
             "required": ["b"], "additionalProperties": false})",
      {R"({"b":1})", R"({"b": 1, "a": true})", R"({"b":1,"a":true,"c":[]})", R"({"b":1,"c":null})"},
      {"{}", R"({"a":true})", R"({"a":true,"b":1})", R"({"b":"x"})", R"({"b":1,"d":1})", R"({"b":1,"b":2})"});
  Expect(R"({"properties": {"a": {"type": "null"}, "b": {"type": "null"}}})",
         {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
         {R"({"c":null})", R"({,"a":null})"});
}

TEST(JsonSchema, KeepsOtherNamesApartFromProperties) {
  Expect(
      R"({"type": "object", "properties": {"id": {"type": "integer"}, "idea": {"type": "integer"}, "é": {}},
             "additionalProperties": {"type": "string"}})",
      {"{}", R"({"id":1})", R"({"id":1,"x":"y"})", R"({"ide":"y"})", R"({"i":"y","ideas":"y"})",
       R"({"":"y"})", "{\"e\":\"y\"}", "{\"\xc3\xa9\":1,\"\xc3\xa9t\":\"y\"}"},
      {R"({"id":"y"})", R"({"x":"y","idea":"y"})", R"({"x":1})", R"({"x":"y","id":1})", R"({"\u0069d":"y"})",
       "{\"x\":\"y\",\"\xc3\xa9\":\"y\"}"});
  Expect(R"({"type": "object", "required": ["a"], "additionalProperties": {"type": "boolean"}})",
         {R"({"a":true})", R"({"a":true,"b":false})"}, {"{}", R"({"b":true})", R"({"a":1})"});
}

TEST(JsonSchema, CountsItems) {
  Expect(R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
         {"[true]", "[true, false]", "[true,true,true]"}, {"[]", "[1]", "[true,true,true,true]"});
  Expect(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
  Expect(R"({"items": {"type": "null"}, "minItems": 2})", {"[null,null]", "[null,null,null,null]"},
         {"[null]", "[]"});
}

TEST(JsonSchema, ListsValuesOfAnyType) {
  Expect(R"({"enum": ["a\"b", 1, null, {"x": [1.5]}]})", {R"("a\"b")", "1", "null", R"({"x":[1.5]})"},
         {"2", "\"a\"", "{}"});
  Expect(R"({"type": "integer", "enum": ["a", 1, 2.5]})", {"1"}, {"\"a\"", "2.5"});
  Expect(R"({"const": "é"})", {"\"\xc3\xa9\""}, {"\"e\""});
}

TEST(JsonSchema, ChoosesBranches) {
  Expect(R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})", {"12", "\"a\""},
         {"\"ab\"", "1.5"});
  Expect(R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"1", "\"a\""}, {"null"});
  Expect(
      R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {}}, "required": ["kind"]},
                       {"type": "object", "properties": {"kind": {"const": "b"}, "y": {}}, "required": ["kind"]}]})",
      {R"({"kind":"a","x":1})", R"({"kind":"b","y":1})"}, {R"({"kind":"a","y":1})", R"({"kind":"c"})"});
  Expect(R"({"allOf": [{"type": "null"}]})", {"null"}, {"1"});
}

TEST(JsonSchema, FollowsReferences) {
  Expect(R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
             "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
             "required": ["v", "next"], "additionalProperties": false}}, "$ref": "#/$defs/node"})",
         {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
         {R"({"v":1})", R"({"v":1,"next":{}})"});
  Expect(R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  Expect(R"({"definitions": {"a/b": {"type": "null"}}, "items": {"$ref": "#/definitions/a~1b"}})", {"[null]"},
         {"[1]"});
}

TEST(JsonSchema, StandsBetweenLiterals) {
  Language language(R"({"type": "null"})", "<call>", "</call>");
  EXPECT_TRUE(language.Has("<call>null</call>"));
  EXPECT_FALSE(language.Has("null"));
}

TEST(JsonSchema, NamesWhatItDoesNotSupport) {
  const std::pair<const char*, const char*> cases[] = {
      {R"x({"type": "string", "pattern": "a(?=b)"})x", "#/pattern: the pattern has lookaround"},
      {R"({"properties": {"a": {"if": true}}})", "#/properties/a: keyword \"if\" is not supported"},
      {R"({"items": {"not": {}}})", "#/items/not: \"not\" of a schema that allows every value"},
      {R"({"not": {"minLength": 3}})", "#/not: \"not\" is supported with type"},
      {R"({"type": "array", "not": {"const": []}})", "\"not\" of a listed array"},
      {R"({"type": "string", "not": {"type": "string"}})", "refuses every value"},
      {R"({"anyOf": [{}, {"uniqueItems": true}]})",
       "#/anyOf/1: \"uniqueItems\" is supported where items lists"},
      {R"({"type": "integer", "multipleOf": 0.5})", "#: multipleOf is 0.5"},
      {R"({"type": "integer", "multipleOf": 1025})", "at most 1024"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6})", "leave no number"},
      {R"({"pattern": "a{65536}b{65536}"})", "steps to compile"},
      {R"({"pattern": "^a$", "minLength": 2})", "leave no string"},
      {R"({"contains": {"type": "string"}, "items": {"minLength": 2}})", "\"contains\" is supported where"},
      {R"({"contains": {"type": "string"}, "maxContains": 1})", "\"maxContains\" is supported where"},
      {R"({"properties": {"ab": {"type": "string"}}, "patternProperties": {"^a": {"type": "null"}}})",
       "#/properties/ab: \"ab\" matches a pattern"},
      {R"({"type": "object", "minProperties": 2})", "only one counts for minProperties"},
      {R"({"type": "object", "propertyNames": {"anyOf": [{}]}})", "#/propertyNames: \"anyOf\""},
      {R"({"type": "object", "anyOf": [{}]})", "\"type\" beside \"anyOf\""},
      {R"({"$ref": "#/a", "const": 1})", "\"const\" beside \"$ref\""},
      {R"({"$ref": "other.json"})", "other.json"},
      {R"({"$ref": "#/$defs/none"})", "names no place"},
      {R"({"$ref": "#"})", "refers to itself"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "never complete"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "both branch 0 and branch 1"},
      {R"({"allOf": [{}, {}]})", "allOf"},
      {R"({"type": "text"})", "type is text"},
      {R"({"type": []})", "empty list"},
      {R"({"enum": []})", "lists no value"},
      {R"({"type": "string", "enum": [1]})", "lists no value"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "greater"},
      {R"({"type": "string", "minLength": -1})", "minLength is -1"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no number"},
      {R"({"type": "number", "minimum": 0.1, "maximum": 0.9})", "no number"},
      {R"({"type": "integer", "minimum": 1e300})", "no number"},
      {R"({"type": "integer", "minimum": "a"})", "want a number"},
      {R"({"type": "object", "required": ["a"], "additionalProperties": false})", "requires \"a\""},
      {R"({"properties": []})", "properties is no object"},
      {R"({"anyOf": [false]})", "#/anyOf/0: false"},
      {"3", "want a schema"},
      {"{", "no JSON"},
  };
  for (const auto& [schema, expected] : cases) {
    const auto grammar = CompileConstraint({"", schema, ""});
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr(expected)) << schema;
  }
}

TEST(JsonSchema, TakesKeywordsThatRefuseNothing) {
  for (const char* keyword :
       {R"("propertyNames": {"type": "string"})", R"("propertyNames": true)", R"("propertyNames": {})",
        R"("minProperties": 0)", R"("dependentRequired": {})", R"("dependentRequired": {"a": []})",
        R"("patternProperties": {})", R"("unevaluatedProperties": true)", R"("not": false)"}) {
    const std::string schema =
        absl::StrCat(R"({"type": "object", "additionalProperties": {"type": "null"}, )", keyword, "}");
    Expect(schema, {"{}", R"({"a": null})"}, {R"({"a": 1})"});
  }
}

TEST(JsonSchema, WritesStringsOfAPattern) {
  Expect(R"({"type": "string", "pattern": "^[A-Z]{2}-\\d+$", "maxLength": 6})", {"\"AB-1\"", "\"AB-123\""},
         {"\"AB-\"", "\"AB-1234\"", "\"xAB-1\"", "\"AB-1x\"", "1"});
  // Each character in one way: escaped where it must be.
  Expect(R"({"pattern": "^[\"\\\\\\n\\u0001/é]+$"})",
         {R"("\"\\\n\u0001/)"
          "\xc3\xa9\""},
         {R"("\u000a")", R"("\/")", R"("\u00e9")"});
  Expect(R"({"type": "string", "format": "date", "not": {"pattern": "^2"}})", {"\"1999-12-31\""},
         {"\"2000-01-01\"", "\"1999-02-29\""});
  Expect(R"({"type": "string", "format": "int32"})", {"\"x\""}, {"1"});
  Expect(R"({"type": "string", "not": {"enum": ["a", "b", 1]}})", {"\"\"", "\"ab\"", "\"c\""},
         {"\"a\"", "\"b\""});
}

TEST(JsonSchema, DividesIntegers) {
  Expect(R"({"type": "integer", "multipleOf": 86400})", {"0", "86400", "-172800"}, {"86401", "8640", "-0"});
  Expect(R"({"type": "number", "multipleOf": 1024, "minimum": 2000, "not": {"const": 3072}})",
         {"2048", "4096"}, {"1024", "3072", "2048.0", "2050"});
  Expect(R"({"type": "number", "not": {"type": "integer"}})", {"0.5", "-7.25"}, {"1", "1.0", "0"});
  Expect(R"({"type": "number", "minimum": 0, "maximum": 2, "not": {"const": 1}})", {"0", "2", "0.5", "1.5"},
         {"1", "2.5"});
}

TEST(JsonSchema, WritesTuplesAndSets) {
  Expect(R"({"prefixItems": [{"type": "integer"}, {"type": "null"}]})", {"[]", "[1]", "[1, null]"},
         {"[null]", "[1,null,3]"});
  Expect(R"({"items": [{"type": "integer"}], "additionalItems": {"type": "null"}, "minItems": 1})",
         {"[1]", "[1,null,null]"}, {"[]", "[null]"});
  Expect(R"({"items": false})", {"[]"}, {"[1]"});
  Expect(R"({"items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 1})",
         {"[\"a\"]", "[\"c\", \"a\",\"b\"]"}, {"[]", "[\"a\",\"a\"]"});
  Expect(R"({"items": {"type": "boolean"}, "uniqueItems": true})", {"[]", "[true,false]"}, {"[true,true]"});
  Expect(R"({"contains": {"type": "null"}, "maxItems": 2})", {"[null]", "[1,null]", "[null,null]"},
         {"[]", "[1,2]"});
  Expect(R"({"items": {"type": "string"}, "contains": {"const": "x"}})", {"[\"x\"]", "[\"a\",\"x\"]"},
         {"[\"a\"]", "[1,\"x\"]"});
}

TEST(JsonSchema, CountsMembersAndTheirDependencies) {
  Expect(
      R"({"properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}, "minProperties": 1,
             "maxProperties": 2, "dependentRequired": {"a": ["c"]}})",
      {R"({"b":null})", R"({"a":null,"c":null})"},
      {"{}", R"({"a":null})", R"({"a":null,"b":null})", R"({"a":null,"b":null,"c":null})"});
  Expect(
      R"({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "null"}})",
      {R"({"x":null})", R"({"x":null,"y":null})"}, {"{}", R"({"x":null,"y":null,"z":null})"});
  Expect(R"({"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": false})",
         {"{}", R"({"n_a":1,"n_":2})"}, {R"({"n_a":"x"})", R"({"m":1})"});
  Expect(
      R"({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "null"}})",
      {"{}", R"({"x":null})", R"({"x":null,"y":null})"}, {R"({"z":null})", R"({"y":null,"x":null})"});
  Expect(R"({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}})",
         {"{}", R"({"a":1})", R"({"b":1})"}, {R"({"a":1,"b":1})"});
}

TEST(JsonSchema, SaysWhatIsTooLargeApartFromWhatIsWrong) {
  const std::string names = absl::StrCat(R"({"enum": [")", std::string(kMaxSchemaBytes, 'a'), R"("]})");
  const std::pair<TextConstraint, const char*> cases[] = {
      {{"", R"({"type": "string", "maxLength": 900000})", ""}, "more than 524288 states"},
      {{"", names, ""}, "bytes, want at most 262144"},
      {{std::string(kMaxLiteralBytes, 'a'), "{}", "b"}, "literals have 4097 bytes"}};
  for (const auto& [constraint, expected] : cases) {
    const absl::Status status = CompileConstraint(constraint).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
  }
}

TEST(JsonSchema, RefusesWhatIsTooDeepOrTooWide) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"items":)";
  deep += "true" + std::string(100, '}');
  EXPECT_FALSE(CompileConstraint({"", deep, ""}).ok());
  EXPECT_FALSE(CompileConstraint({"", std::string(100000, '['), ""}).ok());
  std::string wide = "{\"properties\":{\"a\":true";
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&wide, ",\"p", i, "\":true");
  EXPECT_FALSE(CompileConstraint({"", wide + "}}", ""}).ok());
  std::string chain = "{\"$ref\":\"#/$defs/d0\",\"$defs\":{\"end\":true";
  for (int i = 0; i < 600; ++i) absl::StrAppend(&chain, ",\"d", i, "\":{\"$ref\":\"#/$defs/d", i + 1, "\"}");
  EXPECT_FALSE(CompileConstraint({"", chain + "}}", ""}).ok());
}

// Levels of branches, each of `width` references to the next: width to the power of levels ways down.
std::string BranchesOfBranches(int width, int levels) {
  std::string schema = R"({"oneOf":[{"$ref":"#/$defs/l0"},{"type":"integer"}],"$defs":{)";
  for (int level = 0; level < levels; ++level) {
    absl::StrAppend(&schema, "\"l", level, "\":{\"anyOf\":[");
    for (int i = 0; i < width; ++i) {
      absl::StrAppend(&schema, i == 0 ? "" : ",", "{\"$ref\":\"#/$defs/l", level + 1, "\"}");
    }
    absl::StrAppend(&schema, "]},");
  }
  return absl::StrCat(schema, "\"l", levels, "\":{\"type\":\"string\"}}}");
}

TEST(JsonSchema, LooksAtEachPlaceOnce) {
  const std::string schema = BranchesOfBranches(40, 8);
  EXPECT_LT(schema.size(), 8000);
  const double start = ThreadCpuSeconds();
  EXPECT_TRUE(CompileConstraint({"", schema, ""}).ok());
  EXPECT_LT(ThreadCpuSeconds() - start, 1);
  Expect(BranchesOfBranches(3, 8), {"\"a\"", "7"}, {"null"});
}

std::string OneOfConstants(int count) {
  std::string schema = "{\"oneOf\":[";
  for (int i = 0; i < count; ++i) absl::StrAppend(&schema, i == 0 ? "" : ",", "{\"const\":", i, "}");
  return schema + "]}";
}

TEST(JsonSchema, EndsWhereItsStepsAreSpentAndSaysWhere) {
  EXPECT_TRUE(CompileConstraint({"", OneOfConstants(500), ""}).ok());
  const double start = ThreadCpuSeconds();
  const absl::Status status =
      CompileConstraint({"", absl::StrCat("{\"items\":", OneOfConstants(12000), "}"), ""}).status();
  EXPECT_LT(ThreadCpuSeconds() - start, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "#/items/oneOf: takes more than 1048576 steps to compile");
}

TEST(JsonSchema, CostsWhatItsBytesCost) {
  std::string enumeration = "{\"enum\":[0";
  for (int i = 1; i < 30000; ++i) absl::StrAppend(&enumeration, ",", i);
  std::string references = R"({"$defs":{"last":true)";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&references, ",\"d", i, "\":true");
  references += "},\"anyOf\":[true";
  for (int i = 0; i < 8000; ++i) absl::StrAppend(&references, ",{\"$ref\":\"#/$defs/d", i % 1000, "\"}");
  const std::string name(100000, 'n');
  const std::string cases[] = {
      enumeration + "]}", references + "]}",
      // Every prefix of the name apart would be five gigabytes.
      absl::StrCat(R"({"properties":{")", name, R"(":true},"additionalProperties":true})"),
      // As would the paths of many places below it.
      absl::StrCat(R"({"properties":{")", name, R"(":{"properties":{"a":true,"b":{"items":true}}}}})"),
      absl::StrCat(R"({"enum":[")", name, R"("]})")};
  for (const std::string& schema : cases) {
    const double start = ThreadCpuSeconds();
    CompileConstraint({"", schema, ""}).status().IgnoreError();
    EXPECT_LT(ThreadCpuSeconds() - start, 2) << schema.substr(0, 60);
  }
  Language list(enumeration + "]}");
  EXPECT_TRUE(list.Has("29999"));
  EXPECT_TRUE(list.Has("2"));
  EXPECT_FALSE(list.Has("30000"));
}

TEST(JsonSchema, TellsEqualValuesHoweverTheyAreWritten) {
  const auto refused = [](absl::string_view one, absl::string_view other) {
    return !CompileConstraint({"", absl::StrCat("{\"oneOf\":[", one, ",", other, "]}"), ""}).ok();
  };
  EXPECT_TRUE(refused(R"({"const":{"a":1,"b":2}})", R"({"const":{"b":2,"a":1.0}})"));
  EXPECT_FALSE(refused(R"({"const":{"a":1}})", R"({"const":{"a":"1"}})"));
  EXPECT_FALSE(refused(R"({"const":["ab","c"]})", R"({"const":["a","bc"]})"));
  EXPECT_TRUE(refused(R"({"enum":[1,2]})", R"({"enum":[3,2.0]})"));
}

TEST(JsonSchema, EndsWhenItsWorkIsStopped) {
  std::stop_source source;
  source.request_stop();
  const StopScope scope(source.get_token());
  EXPECT_TRUE(absl::IsCancelled(CompileConstraint({"", BranchesOfBranches(3, 3), ""}).status()));
}

}  // namespace
}  // namespace aludel
