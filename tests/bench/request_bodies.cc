#include "tests/bench/request_bodies.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr int kSchemaKinds = 12;

// `count` of what `item(i)` gives, with commas.
template <typename Item>
std::string Join(int count, const Item& item) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", item(i));
  return text;
}

std::string Repeat(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

}  // namespace

int RequestBodies::Count(size_t bytes) {
  const size_t most = std::max<size_t>(max_bytes_ / bytes, 2);
  int bits = 0;
  while (size_t{1} << (bits + 1) <= most) ++bits;
  const int64_t scale = int64_t{1} << Up(bits + 1);
  return static_cast<int>(std::min<int64_t>(scale + Up(scale), static_cast<int64_t>(most)));
}

std::string RequestBodies::Chat(const std::string& fields, const std::string& content) {
  return absl::StrCat(R"({"model":"chat","messages":[{"role":"user","content":)", content, "}]", fields, "}");
}

std::string RequestBodies::Format(const std::string& schema) {
  return Chat(absl::StrCat(R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)",
                           schema, "}}"));
}

std::string RequestBodies::Tools(const std::string& parameters) {
  return Chat(absl::StrCat(R"(,"tool_choice":")", Up(2) == 0 ? "required" : "auto",
                           R"(","tools":[{"type":"function","function":{"name":"f","parameters":)",
                           parameters, "}}]"));
}

std::string RequestBodies::Name() {
  return absl::StrCat(std::string(1, static_cast<char>('a' + Up(26))), Up(40));
}

std::string RequestBodies::Text(size_t bytes) {
  static constexpr const char* kPieces[] = {"a",
                                            " ",
                                            "the ",
                                            "0",
                                            "  ",
                                            "\\n",
                                            "\xc3\xa9",
                                            "\xe2\x96\x81",
                                            "xyz",
                                            "=",
                                            "\\u0000",
                                            "\xf0\x9f\x98\x80",
                                            "<|im_start|>",
                                            "'s",
                                            "\\t "};
  const int64_t few = 1 + Up(static_cast<int64_t>(std::size(kPieces)));
  std::string text;
  while (text.size() < bytes) text += kPieces[(Up(few) * 7) % std::size(kPieces)];
  return text;
}

std::string RequestBodies::Scalar() {
  switch (Up(6)) {
    case 0:
      return absl::StrCat(Up(1000));
    case 1:
      return absl::StrCat("-", Up(1000), ".", Up(1000), "e", Up(300));
    case 2:
      return "true";
    case 3:
      return "null";
    default:
      return Quoted(Name());
  }
}

std::string RequestBodies::Value(int depth) {
  if (depth == 0 || Up(3) == 0) return Scalar();
  const int count = static_cast<int>(Up(6));
  if (Up(2) == 0) return absl::StrCat("[", Join(count, [&](int) { return Value(depth - 1); }), "]");
  return absl::StrCat(
      "{", Join(count, [&](int i) { return absl::StrCat("\"", Name(), i, "\":", Value(depth - 1)); }), "}");
}

// Anything that a schema may hold, references to `definitions` others among it.
std::string RequestBodies::Schema(int depth, int definitions) {
  const auto inner = [&](int) { return Schema(depth - 1, definitions); };
  const int count = 1 + static_cast<int>(Up(5));
  if (depth > 0) {
    switch (Up(10)) {
      case 0:
        return absl::StrCat("{\"anyOf\":[", Join(count, inner), "]}");
      case 1:
        return absl::StrCat("{\"oneOf\":[", Join(count, inner), "]}");
      case 2:
      case 3:
        return absl::StrCat("{\"properties\":{",
                            Join(count, [&](int i) { return absl::StrCat("\"p", i, "\":", inner(i)); }), "}",
                            Up(2) == 0 ? R"(,"required":["p0"])" : "",
                            Up(2) == 0 ? R"(,"additionalProperties":true)" : "", "}");
      case 4:
        return absl::StrCat("{\"items\":", inner(0), ",\"maxItems\":", Up(1 << Up(16)), "}");
      case 5:
        return absl::StrCat("{\"allOf\":[", inner(0), "]}");
      default:
        break;
    }
  }
  switch (Up(8)) {
    case 0:
      return absl::StrCat("{\"type\":\"string\",\"maxLength\":", Up(1 << Up(18)), "}");
    case 1:
      return absl::StrCat("{\"enum\":[", Join(count, [&](int) { return Scalar(); }), "]}");
    case 2:
      return absl::StrCat("{\"type\":\"integer\",\"minimum\":", Up(100),
                          ",\"maximum\":", Up(int64_t{1} << Up(50)), "}");
    case 3:
      return R"({"type":["object","array","null"]})";
    case 4:
      return "{}";
    default:
      return absl::StrCat("{\"$ref\":\"#/$defs/d", Up(std::max(definitions, 1)), "\"}");
  }
}

std::string RequestBodies::SchemaOfOneKind(int kind, std::string* name) {
  switch (kind) {
    case 0: {
      *name = "branches of branches";
      const int levels = 1 + static_cast<int>(Up(16));
      const int width = std::max(1, Count(25) / levels);
      return absl::StrCat(
          R"({"oneOf":[{"$ref":"#/$defs/d0"},{"type":"integer"}],"$defs":{)",
          Join(levels,
               [&](int level) {
                 return absl::StrCat(
                     "\"d", level, "\":{\"anyOf\":[",
                     Join(width,
                          [&](int) { return absl::StrCat("{\"$ref\":\"#/$defs/d", level + 1, "\"}"); }),
                     "]}");
               }),
          ",\"d", levels, "\":{\"type\":\"string\"}}}");
    }
    case 1:
      *name = "oneOf constants";
      return absl::StrCat("{\"oneOf\":[",
                          Join(Count(16), [](int i) { return absl::StrCat("{\"const\":", i, "}"); }), "]}");
    case 2:
      *name = "oneOf tagged objects";
      return absl::StrCat("{\"oneOf\":[",
                          Join(Count(60),
                               [](int i) {
                                 return absl::StrCat(R"({"properties":{"t":{"const":")", i,
                                                     R"("}},"required":["t"]})");
                               }),
                          "]}");
    case 3:
      *name = "a large enum";
      return absl::StrCat("{\"enum\":[",
                          Join(Count(12), [&](int i) { return absl::StrCat("\"", Name(), i, "\""); }), "]}");
    case 4:
      *name = "optional properties";
      return absl::StrCat("{\"properties\":{",
                          Join(std::min(Count(12), 1000),
                               [](int i) { return absl::StrCat("\"p", i, "\":{\"type\":\"null\"}"); }),
                          Up(2) == 0 ? "},\"additionalProperties\":true}" : "}}");
    case 5:
      *name = "a long name";
      return absl::StrCat("{\"properties\":{\"", std::string(Count(1), 'n'),
                          "\":{}},\"additionalProperties\":{\"type\":\"null\"}}");
    case 6: {
      *name = "levels";
      const int depth = std::min(Count(20), 60);
      return absl::StrCat(Repeat(depth, "{\"items\":"), "{}", std::string(depth, '}'));
    }
    case 7:
      *name = "anyOf of everything";
      return absl::StrCat("{\"anyOf\":[", Join(Count(3), [](int) { return std::string("{}"); }), "]}");
    case 8:
      *name = "two ways at every level";
      return R"({"$defs":{"a":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]},"y":{}}},
"b":{"properties":{"x":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]},"z":{}}}},"$ref":"#/$defs/a"})";
    case 9:
      *name = "a chain of references";
      return absl::StrCat(
          "{\"$ref\":\"#/$defs/d0\",\"$defs\":{",
          Join(std::min(Count(30), 1000),
               [](int i) { return absl::StrCat("\"d", i, "\":{\"$ref\":\"#/$defs/d", i + 1, "\"}"); }),
          "}}");
    case 10:
      *name = "many required";
      return absl::StrCat("{\"required\":[",
                          Join(Count(8), [](int i) { return absl::StrCat("\"r", i, "\""); }), "]}");
    default: {
      *name = "anything";
      const int definitions = 1 + static_cast<int>(Up(30));
      return absl::StrCat(
          "{\"$ref\":\"#/$defs/d0\",\"$defs\":{",
          Join(definitions, [&](int i) { return absl::StrCat("\"d", i, "\":", Schema(4, definitions)); }),
          "}}");
    }
  }
}

RequestBody RequestBodies::Next() {
  constexpr int kKinds = 2 * kSchemaKinds + 16;
  const int kind = next_++ % kKinds;
  std::string name;
  if (kind < kSchemaKinds) {
    std::string text = Format(SchemaOfOneKind(kind, &name));
    return {absl::StrCat("schema: ", name), std::move(text)};
  }
  if (kind < 2 * kSchemaKinds) {
    std::string text = Tools(SchemaOfOneKind(kind - kSchemaKinds, &name));
    return {absl::StrCat("tool: ", name), std::move(text)};
  }
  switch (kind - 2 * kSchemaKinds) {
    case 0:
      return {"tools twice",
              Chat(absl::StrCat(",\"tools\":{",
                                Join(Count(12), [](int i) { return absl::StrCat("\"k", i, "\":0"); }),
                                "},\"tools\":[]"))};
    case 1:
      return {"many tools", Chat(absl::StrCat(",\"tools\":[",
                                              Join(std::min(Count(60), 128),
                                                   [&](int i) {
                                                     return absl::StrCat(
                                                         R"({"type":"function","function":{"name":"f)", i,
                                                         R"(","parameters":)", Value(3), "}}");
                                                   }),
                                              "]"))};
    case 2:
      return {"many messages", absl::StrCat(R"({"model":"chat","messages":[)",
                                            Join(Count(40),
                                                 [&](int i) {
                                                   return absl::StrCat(R"({"role":")",
                                                                       i % 2 == 0 ? "user" : "assistant",
                                                                       R"(","content":")", Name(), "\"}");
                                                 }),
                                            "]}")};
    case 3:
      return {
          "tool calls and answers",
          absl::StrCat(
              R"({"model":"chat","messages":[)",
              Join(
                  Count(150),
                  [&](int i) {
                    return absl::StrCat(
                        R"({"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":[)",
                        i, R"(]}"}}]},{"role":"tool","tool_call_id":"c","content":"x"})");
                  }),
              "]}")};
    case 4: {
      const int depth = Count(2);
      return {"deep lists",
              Chat(absl::StrCat(",\"metadata\":", std::string(depth, '['), std::string(depth, ']')))};
    }
    case 5:
      return {"one long word", Chat("", Quoted(std::string(Count(1), 'a')))};
    case 6:
      return {"a long text", Chat("", Quoted(Text(Count(1))))};
    case 7:
      return {
          "content parts",
          Chat("", absl::StrCat(
                       "[", Join(Count(27), [](int) { return std::string(R"({"type":"text","text":"a"})"); }),
                       "]"))};
    case 8:
      return {
          "stop strings",
          Chat(absl::StrCat(",\"stop\":[",
                            Join(std::min(Count(1024), 4), [&](int) { return Quoted(Text(1000)); }), "]"))};
    case 9:
      return {"logit bias",
              Chat(absl::StrCat(
                  ",\"logit_bias\":{",
                  Join(std::min(Count(8), 1024), [](int i) { return absl::StrCat("\"", i, "\":1"); }), "}"))};
    case 10:
      return {"template arguments", Chat(absl::StrCat(",\"chat_template_kwargs\":{\"a\":", Value(8), "}"))};
    case 11:
      return {"empty containers",
              Chat(absl::StrCat(",\"metadata\":[",
                                Join(Count(3), [&](int i) { return std::string(i % 2 == 0 ? "[]" : "{}"); }),
                                "]"))};
    case 12:
      return {"wide objects",
              Chat(absl::StrCat(
                  ",\"metadata\":[",
                  Join(Count(9000),
                       [](int) {
                         return absl::StrCat(
                             "{", Join(1000, [](int i) { return absl::StrCat("\"k", i, "\":0"); }), "}");
                       }),
                  "]"))};
    case 13:
      return {"escapes", Chat("", Quoted(Repeat(Count(6), "\\u00e9")))};
    case 14:
      return {"not JSON", Text(Count(1))};
    default:
      return {"numbers",
              Chat(absl::StrCat(
                  ",\"metadata\":[",
                  Join(Count(8), [&](int) { return absl::StrCat(Up(1 << 20), ".5e-", Up(300)); }), "]"))};
  }
}

}  // namespace aludel
