#include "server/bench/request_trace.h"

#include <algorithm>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::TempDir;

std::string WriteTrace(const std::string& text) {
  const std::string path = TempDir() + "/trace.jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(RequestTrace, IsReadInOrderOfArrival) {
  const auto trace =
      LoadTrace(WriteTrace(R"({"timestamp": 5000, "input_length": 700, "output_length": 3, "hash_ids": [0, 9]}

{"timestamp": 2000, "prompt": "hello", "max_tokens": 4}
)"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].prompt, "hello");
  EXPECT_EQ((*trace)[0].output_tokens, 4);
  EXPECT_EQ((*trace)[0].arrival, 0);
  EXPECT_EQ((*trace)[1].arrival, 3);
  EXPECT_EQ((*trace)[1].input_tokens, 700);
  EXPECT_THAT((*trace)[1].blocks, ElementsAre(0, 9));
}

TEST(RequestTrace, ErrorsNameTheLine) {
  const auto message = [](const std::string& text) {
    return std::string(LoadTrace(WriteTrace(text)).status().message());
  };
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 1}\n{\"input_length\": 1}\n"),
              HasSubstr(":2: want a JSON"));
  EXPECT_THAT(message("{\"timestamp\": 1}\n"), HasSubstr(":1: want \"prompt\""));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": [\"a\"]}\n"),
              HasSubstr("wants integers"));
  EXPECT_THAT(message(""), HasSubstr("holds no requests"));
  EXPECT_FALSE(LoadTrace("/no/such/file").ok());
}

TEST(RequestTrace, CoarseArrivalsAreSpreadUntilTheNextStep) {
  std::vector<TraceRequest> trace(300);
  for (size_t i = 0; i < trace.size(); ++i) trace[i].arrival = 3.0 * static_cast<double>(i / 100);
  std::vector<TraceRequest> again = trace;
  SpreadArrivals(1, &trace);
  SpreadArrivals(1, &again);
  EXPECT_TRUE(std::is_sorted(trace.begin(), trace.end(),
                             [](const auto& a, const auto& b) { return a.arrival < b.arrival; }));
  for (size_t i = 0; i < trace.size(); ++i) {
    EXPECT_EQ(static_cast<int>(trace[i].arrival / 3), static_cast<int>(i / 100));
    EXPECT_EQ(trace[i].arrival, again[i].arrival);
  }
  EXPECT_GT(trace[99].arrival - trace[0].arrival, 2.5);
}

}  // namespace
}  // namespace aludel
