#include "runtime/evaluate/evaluate.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "nlohmann/json.hpp"
#include "runtime/calibrate/calibrate_job.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

EvaluateJob DemoJob() {
  EvaluateJob job;
  job.producer = "deploy/demo/base";
  job.consumer = "deploy/demo/chat";
  job.codec = "deploy/demo/codec";
  job.qa = "deploy/demo/questions.jsonl";
  job.questions = 12;
  return job;
}

absl::StatusOr<EvaluateReport> RunJob(const EvaluateJob& job) {
  const auto device = OpenDevice({.name = "cpu", .threads = 1});
  return Evaluate(job, device->get(),
                  [](absl::string_view, int64_t, int64_t, absl::string_view) { return true; });
}

const FormatResult& Find(const EvaluateReport& report, const std::string& name) {
  for (const FormatResult& format : report.formats) {
    if (format.name == name) return format;
  }
  ADD_FAILURE() << "no " << name;
  return report.formats.front();
}

TEST(Evaluate, OrdersTheFormatsOfTheDemoAsPublished) {
  EvaluateJob job = DemoJob();
  job.questions = 30;
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  const FormatResult& raw = Find(*report, "raw");
  const FormatResult& reuse = Find(*report, "reuse-only");
  const FormatResult& scd = Find(*report, "scd");
  EXPECT_GT(raw.kl, reuse.kl);
  EXPECT_GT(reuse.kl, scd.kl);
  EXPECT_GT(report->oracle_f1, raw.f1 + 0.2);
  // 64 + 64 bf16 latents per layer against 128 + 128 bf16 values, plus a header per layer; the last prompt
  // token is not shipped.
  EXPECT_NEAR(raw.bytes_per_token, 4096, 40);
  EXPECT_NEAR(scd.bytes_per_token, 2048, 20);
  EXPECT_EQ(Find(*report, "control-p0").bytes_per_token, 0);
  EXPECT_LT(scd.consumer_compute_share, 0.2);
  for (const FormatResult& format : report->formats) {
    double bytes = 0;
    for (const Share& share : format.shares) bytes += share.bytes;
    EXPECT_NEAR(bytes, format.bytes_per_token, 1e-6) << format.name;
  }
  // The consumer makes layer 0 of a control itself; Patch sends what the first layers of `scd` attend from.
  EXPECT_LT(Find(*report, "control-p0").layer_errors[0].output.ratio(), 1e-6);
  EXPECT_EQ(scd.shares[0].part, "H");
  EXPECT_EQ(Find(*report, "recompute-0-1").recomputed_layers, 2);
}

TEST(Evaluate, TiersGoFromTheCoarsest) {
  EvaluateJob job = DemoJob();
  job.questions = 1;
  job.formats = "aludel-p2,aludel-p0,scd";
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(*report->formats[0].tier, *report->formats[1].tier);
  EXPECT_EQ(report->formats[1].tier, 0);
  EXPECT_FALSE(report->formats[2].tier.has_value());
}

TEST(Evaluate, WarnsWhereTheLossAskedForIsSurelyExceeded) {
  EvaluateReport report;
  report.formats.resize(3);
  report.formats[0] = {.name = "broken", .max_kl = 0.02, .kl = 0.03, .kl_ci95 = {0.025, 0.035}};
  report.formats[1] = {.name = "unsure", .max_kl = 0.02, .kl = 0.03, .kl_ci95 = {0.015, 0.045}};
  report.formats[2] = {.name = "free", .kl = 1, .kl_ci95 = {1, 1}};
  const std::vector<std::string> warnings = LossWarnings(report);
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("broken loses KL 0.0300"));
  EXPECT_THAT(ReportMarkdown(report), HasSubstr(warnings[0]));
}

TEST(Evaluate, RawOfOneModelLosesNothing) {
  EvaluateJob job = DemoJob();
  job.producer = job.consumer;
  job.codec = "";
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->formats[0].kl, 0);
  EXPECT_EQ(report->formats[0].f1, report->oracle_f1);
}

// Of one model, raw handed over from one FP8 cache to another is local prefill over such a cache: what it loses is the cache's.
TEST(Evaluate, MeasuresWhatACacheOfFp8Loses) {
  EvaluateJob job = DemoJob();
  job.producer = job.consumer;
  job.codec = "";
  job.formats = "raw";
  job.kv_dtype = DType::kFp8;
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kv_dtype, "fp8");
  const FormatResult& raw = report->formats[0];
  EXPECT_GT(raw.kl, 1e-6);
  EXPECT_LT(raw.kl, 0.02);
  // The wire's bytes are those of bf16.
  EXPECT_NEAR(raw.bytes_vs_raw, 1, 0.02);
  for (const LayerError& error : raw.layer_errors) {
    // Steps of 1/8 to 1/16 of a number, off by their twelfth part squared, and what earlier layers add.
    EXPECT_GT(error.k.ratio(), 1e-4);
    EXPECT_LT(error.k.ratio(), 2e-2);
    EXPECT_GT(error.v.ratio(), 1e-4);
    EXPECT_LT(error.v.ratio(), 5e-2);
  }
  EXPECT_THAT(ReportMarkdown(*report), HasSubstr("fp8 caches"));
}

// Of one model with rounded weights, against itself and against what it is without.
TEST(Evaluate, AnUnroundedOracleShowsWhatRoundingLoses) {
  EvaluateJob job = DemoJob();
  job.producer = job.consumer;
  job.codec = "";
  job.formats = "raw";
  job.questions = 4;
  const auto unrounded = RunJob(job);
  ASSERT_TRUE(unrounded.ok()) << unrounded.status();
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kInt4}) {
    job.weights = format;
    job.unrounded_oracle = false;
    const auto same = RunJob(job);
    job.unrounded_oracle = true;
    const auto other = RunJob(job);
    ASSERT_TRUE(same.ok() && other.ok()) << same.status() << other.status();
    EXPECT_EQ(same->formats[0].kl, 0) << Name(format);
    EXPECT_GT(other->formats[0].kl, 1e-5) << Name(format);
    EXPECT_LT(other->formats[0].kl, 0.1) << Name(format);
    EXPECT_EQ(other->oracle_f1, unrounded->oracle_f1);
  }
  job.codec = "deploy/demo/codec";
  job.texts = {"README.md"};
  job.upgrade_after = {16};
  EXPECT_THAT(std::string(RunJob(job).status().message()), HasSubstr("leave out --unrounded-oracle"));
}

TEST(Evaluate, SameSeedGivesTheSameNumbers) {
  EvaluateJob job = DemoJob();
  job.questions = 4;
  job.formats = "scd";
  const auto first = RunJob(job);
  const auto second = RunJob(job);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->formats[0].kl, second->formats[0].kl);
  EXPECT_EQ(first->formats[0].f1_ci95.low, second->formats[0].f1_ci95.low);
}

// Servers and tools take the same location; the record of what was measured names the version's manifest.
TEST(Evaluate, TakesADirectoryOfVersions) {
  const TemporaryDirectory files;
  const std::string versions = files.File("codec");
  ASSERT_TRUE(PublishVersion(versions, "deploy/demo/codec").ok());
  EvaluateJob job = DemoJob();
  job.questions = 2;
  job.formats = "aludel-p2";
  job.log = files.File("plain.log");
  const auto plain = RunJob(job);
  job.codec = versions;
  job.log = files.File("versions.log");
  const auto found = RunJob(job);
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->formats[0].kl, plain->formats[0].kl);
  const auto description = [](const std::string& log) { return log.substr(0, log.find('\n')); };
  EXPECT_EQ(description(files.Read("versions.log")), description(files.Read("plain.log")));
  EXPECT_THAT(files.Read("versions.log"), HasSubstr("codec "));
}

TEST(Evaluate, MeasuresPerplexityWhereTextIsGiven) {
  EvaluateJob job = DemoJob();
  job.questions = 1;
  job.texts = {"deploy/demo/questions.jsonl", "deploy/demo/calibration.jsonl"};
  job.text_windows = 2;
  job.window_tokens = 128;
  job.formats = "raw,scd";
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->texts.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(report->texts[i].oracle_ppl, 1);
    EXPECT_GT(report->formats[1].ppl[i], 1);
  }
  EXPECT_THAT(ReportMarkdown(*report), HasSubstr("| perplexity | questions.jsonl | calibration.jsonl |"));
  EXPECT_THAT(ReportHtml(*report), HasSubstr("<th>calibration.jsonl</th>"));
}

TEST(Evaluate, ReportHasTheKeysThatScriptsRelyOn) {
  EvaluateJob job = DemoJob();
  job.questions = 2;
  const auto report = RunJob(job);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::string directory = ::testing::TempDir() + "/evaluate_report";
  ASSERT_TRUE(WriteReport(*report, directory).ok());
  const auto json = nlohmann::json::parse(std::ifstream(directory + "/report.json"));
  EXPECT_TRUE(json["oracle"].contains("f1") && json["oracle"].contains("em"));
  for (const char* key :
       {"name", "tier", "recomputed_layers", "recomputed_tokens", "consumer_compute_share", "bytes_per_token",
        "bytes_vs_raw", "f1", "f1_ci95", "em", "kl", "kl_p95", "max_kl", "tv", "ppl", "encode_tokens_per_s",
        "reconstruct_tokens_per_s", "layer_error", "allocation"}) {
    EXPECT_TRUE(json["formats"][0].contains(key)) << key;
  }
  EXPECT_GT(json["local_tokens_per_s"], 0);
  EXPECT_GT(json["producer_tokens_per_s"], 0);
  ASSERT_EQ(json["examples"].size(), 2);
  for (const auto& example : json["examples"]) {
    EXPECT_FALSE(example["prompt"].get<std::string>().empty());
    EXPECT_FALSE(example["oracle"].get<std::string>().empty());
    EXPECT_EQ(example["formats"].size(), json["formats"].size());
  }
  EXPECT_TRUE(json["formats"][0]["ppl"].empty());
}

TEST(Evaluate, InterruptedRunGoesOnToTheSameReport) {
  EvaluateJob job = DemoJob();
  job.questions = 5;
  job.formats = "scd,control-p0";
  const auto whole = RunJob(job);
  job.log = ::testing::TempDir() + "/interrupted.jsonl";
  const auto device = OpenDevice({.name = "cpu", .threads = 1});
  const auto stopped =
      Evaluate(job, device->get(),
               [](absl::string_view, int64_t done, int64_t, absl::string_view) { return done < 3; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status()));
  job.resume = true;
  const auto resumed = RunJob(job);
  ASSERT_TRUE(whole.ok() && resumed.ok()) << resumed.status();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(whole->formats[i].kl, resumed->formats[i].kl);
    EXPECT_EQ(whole->formats[i].f1_ci95.low, resumed->formats[i].f1_ci95.low);
    EXPECT_EQ(whole->formats[i].layer_errors[5].output.ratio(),
              resumed->formats[i].layer_errors[5].output.ratio());
  }
  job.formats = "scd";
  EXPECT_TRUE(absl::IsFailedPrecondition(RunJob(job).status()));
}

TEST(Evaluate, UnknownFormatIsNamed) {
  EvaluateJob job = DemoJob();
  job.formats = "raw,papyrus";
  EXPECT_THAT(std::string(RunJob(job).status().message()), HasSubstr("papyrus"));
}

// A small calibration from end to end, twice, and a consumer added afterwards.
class Calibrate : public ::testing::Test {
 protected:
  static CalibrateJob SmallJob(const std::string& out) {
    CalibrateJob job;
    job.producer = "deploy/demo/base";
    job.consumers = {"deploy/demo/chat"};
    job.data = "deploy/demo/calibration.jsonl";
    job.out = ::testing::TempDir() + "/" + out;
    job.prompts = 8;
    job.held_out = 0.25;
    job.scd.max_patch = 1;
    job.scd.statistics.sample_tokens = 512;
    job.scd.aligner.epochs = 1;
    job.scd.aligner.width = 16;
    return job;
  }
  static absl::Status RunJob(const CalibrateJob& job) {
    const auto device = OpenDevice({.name = "cpu", .threads = 1});
    return RunCalibrateJob(job, device->get());
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(Calibrate, SameSeedGivesTheSameBytesAndAddingAConsumerKeepsTheEncoder) {
  const CalibrateJob first = SmallJob("calibrate_first");
  const CalibrateJob second = SmallJob("calibrate_second");
  std::filesystem::remove_all(first.out);  // of an earlier run, perhaps of another version
  std::filesystem::remove_all(second.out);
  ASSERT_TRUE(RunJob(first).ok());
  ASSERT_TRUE(RunJob(second).ok());
  for (const auto& entry : std::filesystem::directory_iterator(first.out)) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(Bytes(first.out + "/" + name), Bytes(second.out + "/" + name)) << name;
  }

  CalibrateJob add = SmallJob("calibrate_second");
  add.add = true;
  add.consumers = {"deploy/demo/base+deploy/demo/json"};
  const absl::Status status = RunJob(add);
  ASSERT_TRUE(status.ok()) << status;
  for (const char* name : {"scd.encoder.safetensors", "reuse-only.encoder.safetensors",
                           "scd.chat.decoder.safetensors", "control-p0.chat.decoder.safetensors"}) {
    EXPECT_EQ(Bytes(first.out + "/" + name), Bytes(second.out + "/" + name)) << name;
  }
  EvaluateJob job = DemoJob();
  job.consumer = "deploy/demo/base+deploy/demo/json";
  job.codec = second.out;
  job.questions = 2;
  const auto device = OpenDevice({.name = "cpu", .threads = 1});
  EXPECT_TRUE(Evaluate(job, device->get(), [](absl::string_view, int64_t, int64_t, absl::string_view) {
                return true;
              }).ok());
}

TEST_F(Calibrate, TooFewPromptsAreRefused) {
  CalibrateJob job = SmallJob("calibrate_few");
  job.prompts = 1;
  EXPECT_THAT(std::string(RunJob(job).message()), HasSubstr("holds 1 prompts, want at least 2"));
}

}  // namespace
}  // namespace aludel
