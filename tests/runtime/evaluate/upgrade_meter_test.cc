#include "runtime/evaluate/upgrade_meter.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "nlohmann/json.hpp"
#include "runtime/calibrate/repack_job.h"
#include "runtime/evaluate/report/upgrade_table.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(UpgradeSpans, DoubleUpToTheLastToken) {
  EXPECT_THAT(UpgradeSpans(5), ElementsAre(5));
  EXPECT_THAT(UpgradeSpans(8), ElementsAre(8));
  EXPECT_THAT(UpgradeSpans(40), ElementsAre(8, 16, 32, 40));
}

// The demo pair with embedded codes, read over two windows of 64 tokens of its questions.
class UpgradesOfTheDemo : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = std::make_unique<TemporaryDirectory>();
    std::filesystem::copy("deploy/demo/codec", files_->File("codec"));
    AludelJob job;
    job.base.producer = "deploy/demo/base";
    job.base.consumers = {"deploy/demo/chat"};
    job.base.data = "deploy/demo/calibration.jsonl";
    job.base.out = files_->File("codec");
    job.base.prompts = 10;
    job.format = "aludel-p0";
    job.options.packing = LatentPacking::kEmbedded;
    job.options.planes = 3;
    const auto device = OpenDevice({.name = "cpu", .threads = 1}).value();
    const absl::Status status = RunRepackJob(job, device.get());
    ASSERT_TRUE(status.ok()) << status;
  }
  static void TearDownTestSuite() { files_.reset(); }

  static EvaluateJob Job() {
    EvaluateJob job;
    job.producer = "deploy/demo/base";
    job.consumer = "deploy/demo/chat";
    job.codec = files_->File("codec");
    job.qa = "deploy/demo/questions.jsonl";
    job.questions = 1;
    job.texts = {"deploy/demo/questions.jsonl"};
    job.text_windows = 2;
    job.window_tokens = 64;
    job.formats = "aludel-p0,aludel-p0@1";
    job.upgrade_after = {8, 16};
    return job;
  }
  static absl::StatusOr<EvaluateReport> RunJob(const EvaluateJob& job) {
    const auto device = OpenDevice({.name = "cpu", .threads = 1});
    return Evaluate(job, device->get(),
                    [](absl::string_view, int64_t, int64_t, absl::string_view) { return true; });
  }

  static std::unique_ptr<TemporaryDirectory> files_;
};

std::unique_ptr<TemporaryDirectory> UpgradesOfTheDemo::files_;

TEST_F(UpgradesOfTheDemo, LoseWhatTheBaseLosesUntilTheyComeAndLessFromThenOn) {
  const auto report = RunJob(Job());
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->upgrades.size(), 1);
  const UpgradeResult& result = report->upgrades.front();
  EXPECT_EQ(result.format, "aludel-p0@1");
  EXPECT_EQ(result.text, "questions.jsonl");
  EXPECT_EQ(result.windows, 2);
  EXPECT_THAT(result.spans, ElementsAre(8, 16, 32));
  // A window's frame of each group of layers comes in two: with one header more, and no byte of it twice.
  const ArtifactManifest manifest = LoadArtifactManifest(files_->File("codec")).value();
  const AludelShape& shape = (*manifest.Find("aludel-p0"))->aludel;
  const auto handed_over = static_cast<double>(31 - shape.head_tokens - shape.tail_tokens);
  EXPECT_NEAR(result.base_bytes_per_token + result.upgrade_bytes_per_token,
              result.whole_bytes_per_token +
                  kFrameHeaderBytes * static_cast<double>(shape.groups.size()) / handed_over,
              1e-9);
  EXPECT_LT(result.base_bytes_per_token, result.upgrade_bytes_per_token);

  ASSERT_EQ(result.curves.size(), 6);
  const UpgradeCurve &at_once = result.curves[0], &after8 = result.curves[1],
                     &after8_again = result.curves[2], &after16 = result.curves[3], &never = result.curves[5];
  EXPECT_EQ(after8.after, 8);
  EXPECT_TRUE(after8_again.again);
  EXPECT_EQ(never.after, std::nullopt);
  for (const UpgradeCurve& curve : result.curves) {
    ASSERT_EQ(curve.kl.size(), 3);
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_GT(curve.kl[s], 0);
      EXPECT_LE(curve.kl_ci95[s].low, curve.kl[s]);
      EXPECT_GE(curve.kl_ci95[s].high, curve.kl[s]);
    }
  }
  EXPECT_EQ(after8.kl[0], never.kl[0]);
  EXPECT_EQ(after8_again.kl[0], never.kl[0]);
  EXPECT_EQ(after16.kl[0], never.kl[0]);
  EXPECT_EQ(after16.kl[1], never.kl[1]);
  EXPECT_NE(after8.kl[1], never.kl[1]);
  EXPECT_NE(after8.kl[1], at_once.kl[1]) << "what was read stays as it was";
  // Read again over the whole, nothing is left of the base.
  for (size_t s = 1; s < 3; ++s) EXPECT_NEAR(after8_again.kl[s], at_once.kl[s], 0.02 * at_once.kl[s]);
}

// What stands beside them changes nothing.
TEST_F(UpgradesOfTheDemo, AreTheFormatsThemselvesAtTheEnds) {
  EvaluateJob job = Job();
  job.text_windows = 1;
  job.upgrade_after = {8};
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  job.formats = "aludel-p0@2,aludel-p0,aludel-p0@1,aludel-p0@3";
  const auto others = RunJob(job);
  ASSERT_TRUE(others.ok()) << others.status();
  // @3 is all of it: there is nothing to come.
  ASSERT_EQ(others->upgrades.size(), 2);
  EXPECT_EQ(others->upgrades[0].format, "aludel-p0@2");
  EXPECT_EQ(others->upgrades[1].format, "aludel-p0@1");
  EXPECT_EQ(others->upgrades[0].curves.front().kl, report->upgrades[0].curves.front().kl);
  EXPECT_EQ(others->upgrades[1].curves.back().kl, report->upgrades[0].curves.back().kl);
  EXPECT_NE(others->upgrades[0].curves.back().kl, report->upgrades[0].curves.back().kl);
}

TEST_F(UpgradesOfTheDemo, StandInEveryReport) {
  const auto report = RunJob(Job());
  ASSERT_TRUE(report.ok()) << report.status();
  const std::string markdown = ReportMarkdown(*report);
  EXPECT_THAT(markdown, HasSubstr("aludel-p0@1, then its other planes: "));
  EXPECT_THAT(markdown, HasSubstr("| other planes come | tokens 1-8 | tokens 9-16 | tokens 17-32 |\n"));
  EXPECT_THAT(markdown, HasSubstr("\n| after 8, these read again | "));
  EXPECT_THAT(ReportHtml(*report), HasSubstr("<td>after 8, these read again</td>"));
  const auto json = nlohmann::json::parse(ReportJson(*report));
  const auto& upgrade = json["upgrades"][0];
  for (const char* key : {"text", "format", "windows", "base_bytes_per_token", "upgrade_bytes_per_token",
                          "whole_bytes_per_token", "spans", "curves"}) {
    EXPECT_TRUE(upgrade.contains(key)) << key;
  }
  EXPECT_EQ(upgrade["curves"][1]["after"], 8);
  EXPECT_TRUE(upgrade["curves"][5]["after"].is_null());
  EXPECT_EQ(upgrade["curves"][1]["kl"].size(), 3);
  EXPECT_EQ(upgrade["curves"][1]["kl_ci95"][0].size(), 2);
}

TEST_F(UpgradesOfTheDemo, AreRefusedWhereTheyCannotBeMeasured) {
  EvaluateJob job = Job();
  job.texts.clear();
  EXPECT_THAT(std::string(RunJob(job).status().message()), HasSubstr("--text names none"));
  job = Job();
  for (const char* formats : {"aludel-p0", "aludel-p0@1", "aludel-p0,aludel-p0@3,raw"}) {
    job.formats = formats;
    EXPECT_THAT(std::string(RunJob(job).status().message()),
                HasSubstr("no cut NAME@N beside the whole NAME of an embedded format"))
        << formats;
  }
  job = Job();
  job.upgrade_after = {32};
  EXPECT_THAT(std::string(RunJob(job).status().message()),
              HasSubstr("after 32 tokens, but a window of 64 tokens has 32 that are read"));
}

}  // namespace
}  // namespace aludel
