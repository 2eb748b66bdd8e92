// Models that think, over HTTP in every API, in front of a scripted decode server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/server/gateway/fake_decode.h"
#include "tests/server/gateway/gateway_fixture.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kBeginId = 257, kEndId = 258;

class ThinkingTokenizer : public ByteTokenizer {
 public:
  int32_t TokenToId(absl::string_view text) const override {
    return text == kThinkBegin ? kBeginId : text == kThinkEnd ? kEndId : -1;
  }
};

// Contents with the thoughts before them in brackets. The argument "open" has it open the thoughts, and "enable_thinking" as
// Qwen3 has it.
class ThinkingTemplate : public ChatTemplate {
 public:
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const override {
    std::string text;
    for (const auto& message : context["messages"]) {
      if (message.contains("reasoning_content")) {
        absl::StrAppend(&text, "[", message["reasoning_content"].get<std::string>(), "]");
      }
      absl::StrAppend(&text, message["content"].get<std::string>(), "|");
    }
    if (!context.value("enable_thinking", true)) return text + "<think>\n\n</think>\n\n";
    return context.value("open", false) ? text + "<think>\n" : text;
  }
  const std::string& tool_source() const override { return source_; }

 private:
  const std::string source_ = "</think> enable_thinking";
};

grpc::Status Thinks(grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  for (const char* text : {"<thi", "nk>\n", "Hm", ", 4.", "\n</th", "ink>", "\n\nIt is", " 4."}) {
    writer->Write(FakeDecode::Token(text));
  }
  writer->Write(FakeDecode::Finished(request, 8));
  return grpc::Status::OK;
}

class GatewayThinkingTest : public GatewayTest {
 protected:
  void Start(FakeDecode* decode) {
    StartGateway({decode});
    ServedModel& model = *models_->all()[0];
    model.tokenizer = std::make_unique<ThinkingTokenizer>();
    model.chat_template = std::make_unique<ThinkingTemplate>();
    model.thinking = DetectThinking(model.chat_template->tool_source());
  }
  std::string Prompt(FakeDecode* decode) {
    const auto prompt = decode->last_request().prompt();
    return {prompt.begin(), prompt.end()};
  }
  Answer Messages(const std::string& fields) {
    return Send(
        "POST", "/v1/messages",
        absl::StrCat(R"({"model": "chat", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}])",
                     fields, "}"));
  }
  Answer Responses(const std::string& fields) {
    return Send("POST", "/v1/responses", absl::StrCat(R"({"model": "chat")", fields, "}"));
  }
  // The data of each event, whose type is the event's name.
  static std::vector<json> Named(const Answer& answer) {
    std::vector<json> events;
    for (const std::string& event :
         std::vector<std::string>(absl::StrSplit(answer.body, "\n\n", absl::SkipEmpty()))) {
      events.push_back(json::parse(event.substr(event.find("data: ") + 6)));
    }
    return events;
  }
};

TEST_F(GatewayThinkingTest, ChatsHaveReasoningContent) {
  FakeDecode decode(Thinks);
  Start(&decode);
  const json whole = Chat("").Json();
  const json& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Hm, 4.");
  EXPECT_EQ(message["content"], "It is 4.");
  EXPECT_GT(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);

  std::string thought, said;
  for (const std::string& event : Chat(R"(, "stream": true)").Events()) {
    if (event == "[DONE]") break;
    const json delta = json::parse(event)["choices"][0]["delta"];
    if (delta.contains("reasoning_content")) {
      EXPECT_EQ(said, "");
      thought += delta["reasoning_content"].get<std::string>();
    }
    if (delta.contains("content")) said += delta["content"].get<std::string>();
  }
  EXPECT_EQ(thought, "Hm, 4.");
  EXPECT_EQ(said, "It is 4.");
}

TEST_F(GatewayThinkingTest, ATemplateMayOpenTheThoughts) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    writer->Write(FakeDecode::Token("Hm.</think>Yes."));
    writer->Write(FakeDecode::Finished(request, 1));
    return grpc::Status::OK;
  });
  Start(&decode);
  const json open = Chat(R"(, "chat_template_kwargs": {"open": true})").Json()["choices"][0]["message"];
  EXPECT_EQ(open["reasoning_content"], "Hm.");
  EXPECT_EQ(open["content"], "Yes.");
  // A prompt whose template wrote empty thoughts is answered at once.
  const json off = Chat(R"(, "reasoning_effort": "none")").Json()["choices"][0]["message"];
  EXPECT_EQ(Prompt(&decode), "hi|<think>\n\n</think>\n\n");
  EXPECT_FALSE(off.contains("reasoning_content"));
  EXPECT_EQ(off["content"], "Hm.</think>Yes.");
}

TEST_F(GatewayThinkingTest, MessagesHaveBlocksOfThinking) {
  FakeDecode decode(Thinks);
  Start(&decode);
  const json whole = Messages(R"(, "thinking": {"type": "enabled", "budget_tokens": 9})").Json();
  ASSERT_EQ(whole["content"].size(), 2);
  EXPECT_EQ(whole["content"][0]["type"], "thinking");
  EXPECT_EQ(whole["content"][0]["thinking"], "Hm, 4.");
  EXPECT_EQ(whole["content"][1], json::parse(R"({"type": "text", "text": "It is 4."})"));
  EXPECT_EQ(decode.last_request().sampling().thinking().tokens(), 9);

  std::vector<std::string> types;
  std::string thought;
  for (const json& event : Named(Messages(R"(, "stream": true)"))) {
    if (event["type"] == "content_block_start") types.push_back(event["content_block"]["type"]);
    if (event["type"] == "content_block_stop") types.emplace_back("stop");
    if (event["type"] == "content_block_delta" && event["delta"]["type"] == "thinking_delta") {
      EXPECT_EQ(event["index"], 0);
      thought += event["delta"]["thinking"].get<std::string>();
    }
  }
  EXPECT_THAT(types, ElementsAre("thinking", "stop", "text", "stop"));
  EXPECT_EQ(thought, "Hm, 4.");

  Messages(R"(, "thinking": {"type": "disabled"})");
  EXPECT_EQ(Prompt(&decode), "hi|<think>\n\n</think>\n\n");
  EXPECT_FALSE(decode.last_request().sampling().has_thinking());
}

TEST_F(GatewayThinkingTest, ResponsesHaveItemsOfReasoning) {
  FakeDecode decode(Thinks);
  Start(&decode);
  const json whole = Responses(R"(, "input": "hi")").Json();
  ASSERT_EQ(whole["output"].size(), 2);
  EXPECT_EQ(whole["output"][0]["type"], "reasoning");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Hm, 4.");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "It is 4.");
  EXPECT_GT(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 2);

  // The next prompt shows them, kept here or sent back.
  Responses(absl::StrCat(R"(, "input": "and?", "previous_response_id": )", whole["id"].dump()));
  EXPECT_EQ(Prompt(&decode), "hi|[Hm, 4.]It is 4.|and?|");
  json items = whole["output"];
  items.push_back({{"role", "user"}, {"content", "so?"}});
  Responses(absl::StrCat(R"(, "input": )", items.dump()));
  EXPECT_EQ(Prompt(&decode), "[Hm, 4.]It is 4.|so?|");

  std::string thought;
  json last;
  int64_t number = 0;
  for (const json& event : Named(Responses(R"(, "input": "hi", "stream": true)"))) {
    EXPECT_EQ(event["sequence_number"], number++);
    if (event["type"] == "response.reasoning_text.delta") thought += event["delta"].get<std::string>();
    last = event;
  }
  EXPECT_EQ(thought, "Hm, 4.");
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(last["response"]["output"][0]["content"][0]["text"], "Hm, 4.");
}

TEST_F(GatewayThinkingTest, MessagesShowWhatWasThoughtBefore) {
  FakeDecode decode(Thinks);
  Start(&decode);
  const std::string said = R"({"role": "user", "content": "so?"}])";
  Send("POST", "/v1/chat/completions",
       absl::StrCat(R"({"model": "chat", "messages": [
         {"role": "assistant", "content": "a", "reasoning_content": "t"}, )",
                    said, "}"));
  EXPECT_EQ(Prompt(&decode), "[t]a|so?|");
  Send("POST", "/v1/messages",
       absl::StrCat(R"({"model": "chat", "max_tokens": 5, "messages": [{"role": "assistant", "content": [
         {"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "a"}]}, )",
                    said, "}"));
  EXPECT_EQ(Prompt(&decode), "[t]a|so?|");
}

TEST_F(GatewayThinkingTest, ClearsWhatWasThoughtInEarlierTurns) {
  FakeDecode decode(Thinks);
  Start(&decode);
  const auto ask = [this](const char* edit) {
    const auto said = [](const char* thought) {
      return absl::StrCat(R"({"role": "assistant", "content": [{"type": "thinking", "thinking": ")", thought,
                          R"("}, {"type": "text", "text": "a"}]}, {"role": "user", "content": "u"})");
    };
    return Send(
        "POST", "/v1/messages",
        absl::StrCat(R"({"model": "chat", "max_tokens": 5, "messages": [)", said("1"), ", ", said("2"),
                     R"(], "context_management": {"edits": [{"type": "clear_thinking_20251015")", edit,
                     "}]}}"));
  };
  EXPECT_EQ(ask(R"(, "keep": "all")").status, 200);
  EXPECT_EQ(Prompt(&decode), "[1]a|u|[2]a|u|");
  EXPECT_EQ(ask("").status, 200);
  EXPECT_EQ(Prompt(&decode), "a|u|[2]a|u|");
  EXPECT_EQ(ask(R"(, "keep": {"type": "thinking_turns", "value": 0})").status, 200);
  EXPECT_EQ(Prompt(&decode), "a|u|a|u|");
}

TEST_F(GatewayThinkingTest, AFormatComesBehindTheThoughts) {
  FakeDecode decode(Thinks);
  Start(&decode);
  Chat(R"(, "guided_regex": "a+")");
  EXPECT_EQ(decode.last_request().constraint().think_begin(), "<think>");
  EXPECT_EQ(decode.last_request().constraint().think_end(), "</think>");
  Chat(R"(, "guided_regex": "a+", "chat_template_kwargs": {"open": true})");
  EXPECT_EQ(decode.last_request().constraint().think_begin(), "");
  EXPECT_EQ(decode.last_request().constraint().think_end(), "</think>");
  Chat(R"(, "guided_regex": "a+", "reasoning_effort": "none")");
  EXPECT_EQ(decode.last_request().constraint().think_end(), "");
}

TEST_F(GatewayThinkingTest, BudgetsNameTheTokensAroundThoughts) {
  FakeDecode decode(Thinks);
  Start(&decode);
  Chat(R"(, "thinking_token_budget": 7)");
  const v1::ThinkingBudget may = decode.last_request().sampling().thinking();
  EXPECT_EQ(may.tokens(), 7);
  EXPECT_EQ(may.begin_token(), kBeginId);
  EXPECT_EQ(may.end_token(), kEndId);
  Chat(R"(, "thinking_token_budget": 0, "chat_template_kwargs": {"open": true})");
  EXPECT_TRUE(decode.last_request().sampling().has_thinking());
  EXPECT_FALSE(decode.last_request().sampling().thinking().has_begin_token());
  models_->all()[0]->tokenizer = std::make_unique<ByteTokenizer>();
  const Answer several = Chat(R"(, "thinking_token_budget": 7)");
  EXPECT_EQ(several.status, 400);
  EXPECT_EQ(several.error_param(), "thinking_token_budget");
}

TEST_F(GatewayTest, AModelThatDoesNotThinkIsNotAskedTo) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const Answer effort = Chat(R"(, "reasoning_effort": "low")");
  EXPECT_EQ(effort.status, 400);
  EXPECT_EQ(effort.error_param(), "reasoning_effort");
  EXPECT_THAT(effort.body, HasSubstr("knows no thinking"));
  EXPECT_EQ(Chat(R"(, "reasoning_effort": "none")").status, 200);
  EXPECT_EQ(Chat(R"(, "thinking_token_budget": 5)").error_param(), "thinking_token_budget");
}

}  // namespace
}  // namespace aludel::gateway_testing
