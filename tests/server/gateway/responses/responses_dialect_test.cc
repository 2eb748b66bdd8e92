#include "server/gateway/responses/responses_dialect.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

class ResponsesDialectTest : public ::testing::Test {
 protected:
  void Keep(const std::string& id, size_t bytes) {
    const std::string text(bytes, 'x');
    store_.Put("ann", id,
               {.messages = absl::StrCat(R"([{"role": "user", "content": ")", text, "\"}]"),
                .items = {{absl::StrCat("msg_", id),
                           absl::StrCat(R"({"role": "user", "content": ")", text, "\"}")}}},
               MonotonicNow());
  }
  static std::string Body(const std::string& fields) {
    return absl::StrCat(R"({"model": "m", "input": "hi")", fields, "}");
  }
  // What its reading weighs, and the parameter of its fault.
  std::pair<size_t, std::string> Read(const std::string& body) {
    ResponsesDialect dialect(&store_, "ann");
    CompletionRequest request;
    const size_t weight = dialect.Weigh(body);
    const auto error = dialect.Read(body, &request);
    return {weight, error ? error->param : ""};
  }

  ResponseStore store_{ResponseStore::Options{}};
};

TEST_F(ResponsesDialectTest, WeighsWhatARequestBrings) {
  Keep("large", 100000);
  Keep("small", 1000);
  const std::string large = Body(R"(, "previous_response_id": "large")");
  EXPECT_GT(Read(large).first, 100000 + large.size());
  EXPECT_EQ(Read(large).second, "");
  const std::string decoy =
      Body(R"(, "metadata": {"previous_response_id": "small"}, "previous_response_id": "large")");
  EXPECT_GT(Read(decoy).first, 100000 + decoy.size());
  EXPECT_EQ(Read(decoy).second, "");
  const std::string small = Body(R"(, "previous_response_id": "small")");
  EXPECT_LT(Read(small).first, 2000);
  EXPECT_EQ(Read(small).second, "");
}

// What was not seen when it was weighed would be read on the thread that it came on.
TEST_F(ResponsesDialectTest, BringsNoMoreThanWasWeighed) {
  Keep("large", 100000);
  Keep("small", 1000);
  const std::string escaped =
      Body(R"(, "metadata": {"previous_response_id": "small"}, "previous_response\u005fid": "large")");
  EXPECT_LT(Read(escaped).first, 2000);
  EXPECT_EQ(Read(escaped).second, "previous_response_id");
  const std::string item = R"({"model": "m", "input": [{"type": "item_reference", "id": "msg_large"}]})";
  EXPECT_GT(Read(item).first, 16 << 10);  // which is for the work pool
  EXPECT_EQ(Read(item).second, "");
  const std::string hidden =
      R"({"model": "m", "input": [{"type": "item\u005freference", "id": "msg_large"}]})";
  EXPECT_LT(Read(hidden).first, 2000);
  EXPECT_EQ(Read(hidden).second, "input");
}

TEST_F(ResponsesDialectTest, HoldsTheShareOfTheBodyAsLongAsTheWriterDoes) {
  HttpBodyBudget budget(1 << 20);
  auto share = std::make_shared<HttpBodyHold>(HttpBodyHold{nullptr, HttpBodyBudget::Share(&budget)});
  const std::weak_ptr<HttpBodyHold> held = share;
  auto dialect = std::make_unique<ResponsesDialect>(&store_, "ann");
  dialect->TakeShare(std::move(share));
  CompletionRequest request;
  ASSERT_FALSE(dialect->Read(Body(""), &request));
  auto writer = dialect->Writer(request, {.id = "resp_1"});
  dialect.reset();
  EXPECT_FALSE(held.expired());
  writer.reset();
  EXPECT_TRUE(held.expired());
}

TEST_F(ResponsesDialectTest, CountsTheConversationThatItBringsAlong) {
  Keep("large", 100000);
  HttpBodyBudget budget(150000);
  const auto hold = [&] {
    return std::make_shared<HttpBodyHold>(HttpBodyHold{nullptr, HttpBodyBudget::Share(&budget)});
  };
  const std::string body = Body(R"(, "previous_response_id": "large")");
  const auto read = [&](ResponsesDialect* dialect, CompletionRequest* request) {
    dialect->Weigh(body);
    dialect->TakeShare(hold());
    return dialect->Read(body, request);
  };
  auto first = std::make_unique<ResponsesDialect>(&store_, "ann");
  CompletionRequest request;
  ASSERT_FALSE(read(first.get(), &request));
  auto writer = first->Writer(request, {.id = "resp_1"});
  first.reset();
  EXPECT_GE(budget.used_bytes(), 100000);
  // Another one does not fit beside it, and fits when it has ended.
  ResponsesDialect second(&store_, "ann");
  CompletionRequest again;
  const auto refused = read(&second, &again);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_GT(refused->retry_after_seconds, 0);
  writer.reset();
  EXPECT_EQ(budget.used_bytes(), 0);
  ResponsesDialect third(&store_, "ann");
  CompletionRequest last;
  EXPECT_FALSE(read(&third, &last));
}

}  // namespace
}  // namespace aludel
