// Renders what Jinja2 rendered, set up as transformers sets it up for chat templates (reference/README.md).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"
#include "runtime/text/chat_template/chat_template.h"

namespace aludel {
namespace {

using ::nlohmann::ordered_json;

constexpr char kTemplates[] = "tests/runtime/text/reference/templates/";

class ChatTemplateGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(std::string(kTemplates) + "golden.json");
    golden_ = ordered_json::parse(file);
  }

  static std::string Source(const std::string& name) {
    std::ifstream file(kTemplates + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  static absl::StatusOr<std::string> Render(const std::string& source, const ordered_json& context) {
    auto chat_template = ChatTemplate::Parse(source, "<s>", "</s>");
    if (!chat_template.ok()) return chat_template.status();
    return (*chat_template)->Render(context);
  }

  // `item` says what Jinja2 made of it: a text, or an error of some kind.
  static void Check(const ordered_json& item, const absl::StatusOr<std::string>& found) {
    if (item.contains("text")) {
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(*found, item["text"].get<std::string>());
      return;
    }
    ASSERT_FALSE(found.ok()) << *found;
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    if (item["error"] == "raised") {
      EXPECT_EQ(found.status().message(), item["message"].get<std::string>());
    } else {
      EXPECT_EQ(found.status().message().find("chat template line "), 0) << found.status();
    }
  }

  ordered_json golden_;
};

TEST_F(ChatTemplateGolden, RendersConversationsAsJinja2) {
  ASSERT_GT(golden_["cases"].size(), 200);
  for (const ordered_json& item : golden_["cases"]) {
    SCOPED_TRACE(item["template"].get<std::string>() + " " + item["conversation"].get<std::string>() + " " +
                 item["option"].dump());
    ordered_json context = golden_["options"][item["option"].get<size_t>()];
    context["messages"] = golden_["conversations"][item["conversation"].get<std::string>()];
    Check(item, Render(Source(item["template"]), context));
  }
}

TEST_F(ChatTemplateGolden, RendersSnippetsAsJinja2) {
  ASSERT_GT(golden_["snippets"].size(), 80);
  const ordered_json context = {{"messages", golden_["conversations"]["turns"]}};
  for (const ordered_json& item : golden_["snippets"]) {
    SCOPED_TRACE(item["source"].get<std::string>());
    Check(item, Render(item["source"], context));
  }
}

}  // namespace
}  // namespace aludel
