#include "server/gateway/openai/model/served_models.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/prompt.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(ServedModels, ToolsAreSpokenOfInTheTemplateForTools) {
  TemporaryDirectory directory;
  std::filesystem::copy_file("deploy/demo/chat/tokenizer.json", directory.File("tokenizer.json"));
  directory.Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use",
      "template": "{{ tools[0]['function']['name'] }}: answer in <tool_call>"}]})");
  ServedModelOptions options;
  options.name = "hermes";
  options.directory = directory.path();
  const auto models = ServedModels::Load({options});
  ASSERT_TRUE(models.ok()) << models.status();
  const ServedModel& model = *models->Find("hermes");
  EXPECT_EQ(model.tool_dialect, ToolDialect::kHermes);

  CompletionRequest request;
  request.messages = nlohmann::ordered_json::array();
  request.tools.list = nlohmann::ordered_json::parse(R"([{"function": {"name": "f"}}])");
  std::string text;
  std::string joint;
  EXPECT_FALSE(RenderChat(model, request, &text, &joint).has_value());
  EXPECT_EQ(text, "f: answer in <tool_call>");
  request.tools.list = nullptr;
  const auto error = RenderChat(model, request, &text, &joint);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->status, 400);
  EXPECT_THAT(error->message, HasSubstr("none named default"));
}

}  // namespace
}  // namespace aludel
