#include "server/decode/load/prefix_log.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

v1::PromptPrefixes Prompt(uint64_t first, int keys = 1) {
  v1::PromptPrefixes prompt;
  for (int i = 0; i < keys; ++i) prompt.add_keys(first + static_cast<uint64_t>(i));
  prompt.set_tokens(64 * static_cast<uint64_t>(keys));
  return prompt;
}

v1::LoadReport Read(const PrefixLog& log, uint64_t since) {
  v1::LoadReport report;
  log.Read(since, &report);
  return report;
}

TEST(PrefixLog, EachReportGoesOnWhereTheLastOneEnded) {
  PrefixLog log;
  log.Add(Prompt(1));
  log.Add(Prompt(2));
  const v1::LoadReport first = Read(log, 0);
  ASSERT_EQ(first.prefixes_size(), 2);
  EXPECT_EQ(first.prefixes(1).keys(0), 2u);
  EXPECT_EQ(Read(log, first.prefixes_end()).prefixes_size(), 0);
  log.Add(Prompt(3));
  const v1::LoadReport second = Read(log, first.prefixes_end());
  ASSERT_EQ(second.prefixes_size(), 1);
  EXPECT_EQ(second.prefixes(0).keys(0), 3u);
  EXPECT_EQ(Read(log, 1'000'000).prefixes_size(), 0);  // of another process, perhaps
}

TEST(PrefixLog, IsBoundedAndSoIsAReport) {
  PrefixLog log;
  for (uint64_t i = 0; i < 2000; ++i) log.Add(Prompt(i * 1000, 100));
  size_t keys = 0;
  uint64_t at = 0;
  int reports = 0;
  for (; reports < 100; ++reports) {
    const v1::LoadReport report = Read(log, at);
    if (report.prefixes_size() == 0) break;
    size_t own = 0;
    for (const v1::PromptPrefixes& prompt : report.prefixes()) own += static_cast<size_t>(prompt.keys_size());
    EXPECT_LE(own, PrefixLog::kMaxReportKeys + PrefixLog::kMaxPromptKeys);
    keys += own;
    at = report.prefixes_end();
  }
  EXPECT_EQ(at, 2000u);
  EXPECT_GT(reports, 1);
  EXPECT_LE(keys, PrefixLog::kMaxKeys);
  EXPECT_GT(keys, PrefixLog::kMaxKeys - 200);
}

TEST(PrefixLog, APromptOfTooManyKeysIsCut) {
  PrefixLog log;
  log.Add(Prompt(0, 5000));
  EXPECT_EQ(Read(log, 0).prefixes(0).keys_size(), static_cast<int>(PrefixLog::kMaxPromptKeys));
  log.Add(v1::PromptPrefixes());
  EXPECT_EQ(Read(log, 0).prefixes_size(), 1);
}

TEST(PrefixLog, AResetLeavesNothing) {
  PrefixLog log;
  log.Add(Prompt(1));
  const uint64_t end = Read(log, 0).prefixes_end();
  log.Clear();
  EXPECT_EQ(Read(log, 0).prefixes_size(), 0);
  log.Add(Prompt(2));
  EXPECT_EQ(Read(log, end).prefixes(0).keys(0), 2u);
}

}  // namespace
}  // namespace aludel
