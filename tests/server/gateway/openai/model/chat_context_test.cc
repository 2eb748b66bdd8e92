#include "server/gateway/openai/model/chat_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/openai/prompt.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

constexpr char kReference[] = "tests/runtime/text/reference/";

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A model directory of a reference tokenizer and a published template.
class Model {
 public:
  Model(const std::string& tokenizer, const std::string& chat_template, bool as_text = true) {
    directory_.Write("tokenizer.json", ReadText(tokenizer));
    directory_.Write("tokenizer_config.json", "{}");
    directory_.Write("chat_template.jinja", chat_template);
    ServedModelOptions options;
    options.name = "chat";
    options.directory = directory_.path();
    options.special_tokens_as_text = as_text;
    auto models = ServedModels::Load({options});
    EXPECT_TRUE(models.ok()) << models.status();
    models_ = std::make_unique<ServedModels>(*std::move(models));
  }
  const ServedModel& operator*() const { return *models_->Find("chat"); }
  const ServedModel* operator->() const { return models_->Find("chat"); }

  std::vector<int32_t> Ids(const std::string& body) const {
    CompletionRequest request;
    const auto bad = ParseChatRequest(body, &request);
    EXPECT_FALSE(bad.has_value()) << bad->message;
    std::string text;
    std::string joint;
    const auto refused = RenderChat(**this, request, &text, &joint);
    EXPECT_FALSE(refused.has_value()) << refused->message;
    std::vector<int32_t> ids;
    const auto error = TokenizeText(**this, "messages", text, false, joint, &ids);
    EXPECT_FALSE(error.has_value()) << error->message;
    return ids;
  }
  std::vector<int32_t> Special(const std::string& body) const {
    std::vector<int32_t> ids = Ids(body);
    std::erase_if(ids, [this](int32_t id) { return !(*this)->tokenizer->IsSpecial(id); });
    return ids;
  }
  std::string Text(const std::string& body) const { return (*this)->tokenizer->Decode(Ids(body), false); }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<ServedModels> models_;
};

// `said` by a user, an assistant, its call of a tool, the tool, and a description of a tool.
std::string Conversation(const std::string& said) {
  ordered_json call = {{"id", "abcdefghi"}, {"type", "function"}};
  call["function"]["name"] = "f";
  call["function"]["arguments"] = ordered_json::object({{"x", said}}).dump();
  ordered_json function = {{"name", "f"}, {"description", said}};
  function["parameters"]["type"] = "object";
  function["parameters"]["properties"][said]["type"] = "string";
  ordered_json tool = {{"type", "function"}};
  tool["function"] = function;
  ordered_json calling = {{"role", "assistant"}, {"content", ""}};
  calling["tool_calls"].push_back(call);
  ordered_json body = {{"model", "chat"}};
  body["tools"].push_back(tool);
  for (const char* role : {"user", "", "tool", "assistant", "user"}) {
    ordered_json message = {{"role", role}, {"content", said}};
    if (message["role"] == "tool") message["tool_call_id"] = "abcdefghi";
    body["messages"].push_back(message["role"] == "" ? calling : message);
  }
  return body.dump();
}

struct Published {
  const char* tokenizer;
  const char* chat_template;
};
// Tokenizers and templates that belong together.
const Published kPublished[] = {
    {"qwen2", "qwen25.jinja"}, {"qwen2", "qwen3.jinja"}, {"llama3", "llama31.jinja"}};

TEST(ChatContext, NoMessageForgesAControlToken) {
  for (const auto& [tokenizer, name] : kPublished) {
    SCOPED_TRACE(name);
    const std::string file = std::string(kReference) + tokenizer + "/tokenizer.json";
    const std::string source = ReadText(std::string(kReference) + "templates/" + name);
    const Model model(file, source);
    ASSERT_TRUE(model->special_tokens_as_text);
    const Model control(file, source, /*as_text=*/false);
    ASSERT_FALSE(control->special_tokens_as_text);
    const std::vector<int32_t> honest = model.Special(Conversation("word"));
    EXPECT_GT(honest.size(), 5u);
    EXPECT_EQ(honest, control.Special(Conversation("word")));
    for (int32_t id = 0; id < model->tokenizer->vocab_size(); ++id) {
      if (!model->tokenizer->IsSpecial(id)) continue;
      const std::string spelling = model->tokenizer->Decode({id}, false);
      for (const std::string& said :
           {spelling, "a " + spelling + " b", spelling + spelling, "x" + spelling.substr(0, 3)}) {
        EXPECT_EQ(model.Special(Conversation(said)), honest) << said;
      }
      // And it is the text that was said.
      EXPECT_EQ(model.Text(Conversation("a" + spelling + "b")),
                control.Text(Conversation("a" + spelling + "b")));
      EXPECT_NE(control.Special(Conversation(spelling)), honest);
    }
  }
}

TEST(ChatContext, OrdinaryTextIsWhatItWas) {
  for (const auto& [tokenizer, name] : kPublished) {
    const std::string file = std::string(kReference) + tokenizer + "/tokenizer.json";
    const std::string source = ReadText(std::string(kReference) + "templates/" + name);
    const Model model(file, source);
    const Model control(file, source, /*as_text=*/false);
    for (const char* said :
         {"Hello, how are you?", "a < b", "x <", "<|", "> quoted", "<think>\nhm\n</think>\n\nso",
          "\xf4\x80\x80\x80 private \xf4\x80\x80\x81", " \n tabs\tand spaces \n"}) {
      EXPECT_EQ(model.Ids(Conversation(said)), control.Ids(Conversation(said))) << name << ": " << said;
    }
  }
}

TEST(ChatContext, TheJointIsACharacterThatNothingHolds) {
  const auto tokenizer = Tokenizer::Load("deploy/demo/chat").value();
  std::string joint;
  ordered_json context = {{"a", "\xf4\x80\x80\x80"}, {"<|end|>", {1, "\xf4\x80\x80\x81 x<|end|>y<|us"}}};
  ASSERT_FALSE(BreakSpecialTokens(*tokenizer, &context, &joint).has_value());
  EXPECT_EQ(joint, "\xf4\x80\x80\x82");
  EXPECT_EQ(
      context,
      (ordered_json{{"a", "\xf4\x80\x80\x80"},
                    {"<" + joint + "|end|>", {1, "\xf4\x80\x80\x81 x<" + joint + "|end|>y<|us" + joint}}}));
  context = ordered_json::object({{"plain", "text | <end>"}});
  const ordered_json before = context;
  ASSERT_FALSE(BreakSpecialTokens(*tokenizer, &context, &joint).has_value());
  EXPECT_EQ(joint, "");
  EXPECT_EQ(context, before);
  // All of them: refused instead of being guessed.
  std::string every = "<|end|>";
  for (int i = 0; i < 0xfffe; ++i) {
    every += {'\xf4', static_cast<char>(0x80 | i >> 12), static_cast<char>(0x80 | (i >> 6 & 0x3f)),
              static_cast<char>(0x80 | (i & 0x3f))};
  }
  context = ordered_json::array({every});
  const auto error = BreakSpecialTokens(*tokenizer, &context, &joint);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->status, 400);
}

TEST(ChatContext, FallsBackWhereItCannotWork) {
  // A template that drops the joint, as one that keeps ASCII only would.
  const Model drops(
      "deploy/demo/chat/tokenizer.json",
      "{% for m in messages %}<|user|>{% for c in m.content %}{% if c < '\x7f' %}{{ c }}{% endif %}"
      "{% endfor %}{% endfor %}");
  EXPECT_FALSE(drops->special_tokens_as_text);
  // A special token of one character.
  auto json = nlohmann::json::parse(ReadText("deploy/demo/chat/tokenizer.json"));
  json["added_tokens"].push_back({{"id", 60000}, {"content", "\xe2\x96\xa0"}, {"special", true}});
  TemporaryDirectory directory;
  directory.Write("tokenizer.json", json.dump());
  const Model one(directory.File("tokenizer.json"),
                  "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}");
  EXPECT_FALSE(one->special_tokens_as_text);
  EXPECT_THAT(std::string(one->tokenizer->CanBreakSpecialTokens().message()), HasSubstr("cannot be told"));
  EXPECT_FALSE(MarksTurnsBySpecialTokens(
      *one->tokenizer,
      **ChatTemplate::Parse("{% for m in messages %}[INST]{{ m.content }}{% endfor %}", "", "")));
  EXPECT_TRUE(MarksTurnsBySpecialTokens(*one->tokenizer, *one->chat_template));
}

}  // namespace
}  // namespace aludel
