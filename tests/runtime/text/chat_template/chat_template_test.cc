#include "runtime/text/chat_template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(const std::string& source,
                                   const ordered_json& context = ordered_json::object()) {
  auto chat_template = ChatTemplate::Parse(source, "<s>", "</s>");
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->Render(context);
}

std::string Error(const std::string& source) { return std::string(Render(source).status().message()); }

TEST(ChatTemplate, RendersTheDemoModelsPrompt) {
  auto chat_template = ChatTemplate::Load("deploy/demo/chat");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const ordered_json context = {{"messages", {{{"role", "user"}, {"content", "Who?"}}}},
                                {"add_generation_prompt", true}};
  auto text = (*chat_template)->Render(context);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<|begin|><|user|>Who?<|assistant|>");
  EXPECT_EQ(ChatTemplate::Load("deploy/demo/base").status().code(), absl::StatusCode::kNotFound);
}

TEST(ChatTemplate, FindsTheTemplateInEveryFormThatModelsUse) {
  TemporaryDirectory directory;
  const auto render = [&]() -> std::string {
    auto chat_template = ChatTemplate::Load(directory.path());
    if (!chat_template.ok()) return std::string(chat_template.status().message());
    return (*chat_template)->Render(ordered_json::object()).value_or("failed");
  };
  EXPECT_THAT(render(), HasSubstr("no chat_template"));
  directory.Write("tokenizer_config.json",
                  R"({"chat_template": "a{{ bos_token }}", "bos_token": {"content": "<b>"}})");
  EXPECT_EQ(render(), "a<b>");
  directory.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(render(), "d");
  directory.Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_THAT(render(), HasSubstr("none named default or tool_use"));
  directory.Write("chat_template.jinja", "file\n");
  EXPECT_EQ(render(), "file");
  directory.Write("chat_template.jinja", "line 1\n{% if %}");
  EXPECT_THAT(render(), AllOf(HasSubstr("chat_template.jinja"), HasSubstr("line 2")));
  directory.Write("tokenizer_config.json", "{");
  EXPECT_THAT(render(), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("not valid JSON")));
}

TEST(ChatTemplate, TakesSpecialTokensFromWhereverTransformersDoes) {
  TemporaryDirectory directory;
  directory.Write("chat_template.jinja", "{{ bos_token }} {{ eos_token }} {{ pad_token }}");
  const auto render = [&]() -> std::string {
    auto chat_template = ChatTemplate::Load(directory.path());
    if (!chat_template.ok()) return std::string(chat_template.status().message());
    return (*chat_template)->Render(ordered_json::object()).value_or("failed");
  };
  directory.Write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "pad_token": "<p>"})");
  EXPECT_EQ(render(), "<s> </s> <p>") << "the class' own";
  directory.Write("special_tokens_map.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>"})");
  EXPECT_EQ(render(), "<b> <e> <p>");
  directory.Write("tokenizer_config.json", R"({"added_tokens_decoder": {}, "bos_token": "<c>"})");
  EXPECT_EQ(render(), "<c>  ") << "there the map is left out";
  std::filesystem::remove(directory.File("tokenizer_config.json"));
  EXPECT_EQ(render(), "<b> <e> ");
}

TEST(ChatTemplate, RendersToolUseWhereToolsAreGiven) {
  TemporaryDirectory directory;
  const auto render = [&](const ordered_json& tools) {
    auto chat_template = ChatTemplate::Load(directory.path());
    EXPECT_TRUE(chat_template.ok()) << chat_template.status();
    EXPECT_THAT((*chat_template)->tool_source(), HasSubstr("{{ tools"));
    const auto text = (*chat_template)->Render({{"tools", tools}});
    return text.ok() ? *text : std::string(text.status().message());
  };
  directory.Write("tokenizer_config.json", R"({"chat_template": [
      {"name": "tool_use", "template": "listed {{ tools[0] }}"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(render({"f"}), "listed f");
  EXPECT_EQ(render(nullptr), "d");
  directory.Write("tokenizer_config.json",
                  R"({"chat_template": [{"name": "tool_use", "template": "listed {{ tools[0] }}"}]})");
  EXPECT_EQ(render({"f"}), "listed f");
  EXPECT_THAT(render(nullptr), HasSubstr("none named default"));
  std::filesystem::create_directory(directory.File("additional_chat_templates"));
  directory.Write("additional_chat_templates/tool_use.jinja", "file {{ tools[0] }}");
  directory.Write("chat_template.jinja", "usual");
  EXPECT_EQ(render({"f"}), "file f");
  EXPECT_EQ(render(nullptr), "usual");
  directory.Write("additional_chat_templates/tool_use.jinja", "{% if %}");
  EXPECT_THAT(std::string(ChatTemplate::Load(directory.path()).status().message()),
              HasSubstr("additional_chat_templates/tool_use.jinja: "));
}

TEST(ChatTemplate, PassesTheTextOfRaiseExceptionAsItIs) {
  const absl::Status status = Render("a\n{{ raise_exception('Roles must alternate') }}").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "Roles must alternate");
}

TEST(ChatTemplate, NamesTheLineOfAFault) {
  EXPECT_EQ(Error("\n\n{{ nothing.here }}"), "chat template line 3: 'nothing' is undefined");
  EXPECT_EQ(Error("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}"),
            "chat template line 2: division by zero");
  EXPECT_EQ(Error("\n{{ 'a' | shout }}"), "chat template line 2: filter 'shout' is not supported");
  EXPECT_EQ(Error("{% include 'x' %}"),
            "chat template line 1: found 'include', want if, for, set, macro, call, with, filter, "
            "generation, break or "
            "continue");
  EXPECT_EQ(Error("{% for x in y recursive %}"),
            "chat template line 1: found 'recursive', want %} (recursive loops are not supported)");
  EXPECT_EQ(Error("{% set = 1 %}"), "chat template line 1: found '=', want a name");
  EXPECT_EQ(Error("{% for in x %}{% endfor %}"), "chat template line 1: found 'in', want a name");
  EXPECT_THAT(Error("{{ '\xff' }}"), HasSubstr("not UTF-8 at byte 4"));
}

TEST(ChatTemplate, TellsTheYear) {
  auto text = Render("{{ strftime_now('%Y') }}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 4);
}

TEST(ChatTemplate, CallerOverridesDefaultsAndSpecialTokens) {
  EXPECT_EQ(*Render("{{ bos_token }}{{ tools }}", {{"bos_token", "B"}, {"tools", {1}}}), "B[1]");
}

TEST(ChatTemplate, BoundsTimeTextAndNesting) {
  const std::string bound = "exceeds its bound";
  EXPECT_THAT(Error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
              HasSubstr(bound));
  EXPECT_THAT(Error("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s "
                    "%}{% endfor %}"),
              ::testing::AnyOf(HasSubstr(bound), HasSubstr("exceeds the bound")));
  EXPECT_THAT(Error("{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}"),
              ::testing::AnyOf(HasSubstr(bound), HasSubstr("exceeds the bound")));
  EXPECT_THAT(Error("{{ 'x' * 9000000000000000000 }}"), HasSubstr("exceeds the bound"));
  EXPECT_THAT(Error("{{ [0] * 9000000000000000000 }}"), HasSubstr(bound));
  EXPECT_THAT(
      Error("{% set ns = namespace(l=[1]) %}{% for i in range(200) %}{% set ns.l = [ns.l] %}{% endfor %}"),
      HasSubstr("nest deeper"));
  EXPECT_THAT(Error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("nests too deep"));
  EXPECT_THAT(Error("{{ " + std::string(1000, '(') + "1" + std::string(1000, ')') + " }}"),
              HasSubstr("nests too deep"));
  EXPECT_THAT(Error("{{ " + std::string(100000, '-') + "1 }}"), HasSubstr("nests too deep"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 10000; ++i) sum += " + 1";
  EXPECT_THAT(Error(sum + " }}"), HasSubstr("nests too deep"));
  std::string blocks;
  for (int i = 0; i < 10000; ++i) blocks += "{% if true %}";
  EXPECT_THAT(Error(blocks), HasSubstr("nest too deep"));
  EXPECT_THAT(Error("{{ range(1000000) }}"), HasSubstr("range has 1e+06 items"));
  EXPECT_THAT(Error("{{ 9223372036854775807 + 1 }}"), HasSubstr("64 bits"));
}

TEST(ChatTemplate, KeepsWhatIsNoDataOutOfNamespacesAndLists) {
  EXPECT_THAT(Error("{% set ns = namespace() %}{% set ns.self = ns %}"),
              HasSubstr("cannot hold a namespace"));
  EXPECT_THAT(Error("{% set ns = namespace() %}{% for x in [1] %}{% set ns.l = loop %}{% endfor %}"),
              HasSubstr("cannot hold a loop"));
  EXPECT_THAT(Error("{% macro m() %}{% endmacro %}{{ [m] }}"), HasSubstr("cannot hold a function"));
}

}  // namespace
}  // namespace aludel
