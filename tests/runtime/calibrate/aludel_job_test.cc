#include "runtime/calibrate/aludel_job.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights/weight_stream.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/write_adapter.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Some of the demo's calibration prompts.
void WriteQuestions(const std::string& path, int first, int count) {
  std::ifstream from("deploy/demo/calibration.jsonl");
  std::ofstream to(path);
  std::string line;
  for (int i = 0; i < first + count && std::getline(from, line); ++i) {
    if (i >= first) to << line << "\n";
  }
}

// Calibrates few layers of the demo pair on few prompts: fast, and nothing of what it finds is good.
class AludelJobTest : public ::testing::Test {
 protected:
  AludelJobTest() {
    std::string pattern = ::testing::TempDir() + "/transformXXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    job_.base.producer = "deploy/demo/base";
    job_.base.consumers = {"deploy/demo/chat"};
    job_.base.data = "deploy/demo/calibration.jsonl";
    job_.base.out = directory_ + "/codec";
    job_.base.prompts = 10;
    job_.base.held_out = 0.2;
    job_.recomputed_layers = 5;
    job_.bytes_per_token = 64;
    job_.options.linear = true;
    job_.sensitivity_prompts = 4;
  }
  ~AludelJobTest() override { std::filesystem::remove_all(directory_); }

  absl::Status Run() { return RunAludelJob(job_, OpenDevice({.name = "cpu", .threads = 1}).value().get()); }
  // With more time where the machine was so busy when its rates were measured that not even the least seemed to fit.
  absl::Status RunInBudget() {
    absl::Status status = Run();
    for (int more = 0; more < 2 && absl::StrContains(status.message(), "the least that calibrates"); ++more) {
      job_.budget *= 2;
      status = Run();
    }
    return status;
  }
  // What every format loses between the job's models, on a few questions: mean KL in nats by its name.
  std::map<std::string, double> Measure() const {
    EvaluateJob job;
    job.producer = job_.base.producer;
    job.consumer = job_.base.consumers.front();
    job.codec = job_.base.out;
    job.qa = "deploy/demo/questions.jsonl";
    job.questions = 4;
    const auto device = OpenDevice({.name = "cpu", .threads = 1}).value();
    const auto report = Evaluate(job, device.get(),
                                 [](absl::string_view, int64_t, int64_t, absl::string_view) { return true; });
    EXPECT_TRUE(report.ok()) << report.status();
    std::map<std::string, double> kl;
    for (const FormatResult& format : report->formats) kl[format.name] = format.kl;
    return kl;
  }
  // That the last run has taken, as its report says.
  double ReportedSeconds() const {
    std::ifstream file(job_.base.out + ".report/aludel-p5.json");
    return nlohmann::json::parse(file)["seconds"].get<double>();
  }
  ArtifactManifest Manifest() const { return LoadArtifactManifest(job_.base.out).value(); }
  static std::vector<std::string> Names(const ArtifactManifest& manifest) {
    std::vector<std::string> names;
    for (const ArtifactFormat& format : manifest.formats) names.push_back(format.name);
    return names;
  }

  std::string directory_;
  AludelJob job_;
};

TEST_F(AludelJobTest, AddsFormatsAndConsumersAndLeavesOthersAlone) {
  ASSERT_TRUE(Run().ok());
  job_.format = "second";
  job_.options.linear = false;
  job_.options.training.steps = 20;
  job_.options.group_layers = 1;
  job_.tuning_data = directory_ + "/more.jsonl";
  WriteQuestions(job_.tuning_data, /*first=*/20, /*count=*/3);
  ASSERT_TRUE(Run().ok());
  ArtifactManifest manifest = Manifest();
  EXPECT_THAT(manifest.formats[0].notes["tuning data"], StartsWith("3 prompts of more.jsonl sha256 "));
  EXPECT_THAT(Names(manifest), ElementsAre("second", "aludel-p5"));
  EXPECT_EQ(manifest.formats[1].aludel.groups.size(), 1);
  EXPECT_EQ(manifest.formats[0].aludel.groups.size(), 2);
  const std::string encoder = manifest.formats[0].encoder.sha256;

  job_.base.add = true;
  job_.base.consumers = {"deploy/demo/base+deploy/demo/json"};
  job_.base.storage = MatrixStorage::kInt8;  // of its decoder
  ASSERT_TRUE(Run().ok());
  job_.base.storage = MatrixStorage::kBf16;
  manifest = Manifest();
  EXPECT_THAT(Names(manifest), ElementsAre("second", "aludel-p5"));
  EXPECT_EQ(manifest.formats[1].decoders.size(), 1);
  EXPECT_EQ(manifest.formats[0].decoders.size(), 2);
  EXPECT_EQ(manifest.formats[0].encoder.sha256, encoder) << "a further consumer leaves the encoder as it is";
  EXPECT_FALSE(std::filesystem::exists(job_.base.out + ".work"));

  job_.base.add = false;
  job_.retune = true;
  const ArtifactDecoder untouched = manifest.formats[0].decoders[0], before = manifest.formats[0].decoders[1];
  job_.options.tuning.learning_rate = 1e-12;
  ASSERT_TRUE(Run().ok());
  manifest = Manifest();
  EXPECT_EQ(manifest.formats[0].encoder.sha256, encoder);
  EXPECT_EQ(manifest.formats[0].decoders[0].file.sha256, untouched.file.sha256);
  EXPECT_NEAR(manifest.formats[0].decoders[1].expected->kl, before.expected->kl, 2e-2 * before.expected->kl)
      << "tuning begins where the decoder is";
  job_.options.tuning.learning_rate = 1e-3;
  ASSERT_TRUE(Run().ok());
  manifest = Manifest();
  EXPECT_NE(manifest.formats[0].decoders[1].file.sha256, before.file.sha256);
  EXPECT_THAT(
      manifest.formats[0].notes["retuned"],
      AllOf(StartsWith("base+json: 2 passes over calibration.jsonl sha256 "), HasSubstr("; base+json: ")));
}

TEST_F(AludelJobTest, LinearDecodersAreTunedWhereThatIsAskedFor) {
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat plain = Manifest().formats[0];
  EXPECT_EQ(plain.notes.at("decoder"), "linear, closed form");

  job_.options.tuning.passes = 1;
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat tuned = Manifest().formats[0];
  EXPECT_EQ(tuned.encoder.sha256, plain.encoder.sha256);
  EXPECT_NE(tuned.decoders[0].file.sha256, plain.decoders[0].file.sha256);
  EXPECT_EQ(tuned.notes.at("decoder"), "linear, tuned, 1 passes over its prompts");

  job_.options.linear = false;
  job_.retune = true;
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat again = Manifest().formats[0];
  EXPECT_EQ(again.encoder.sha256, plain.encoder.sha256);
  EXPECT_NE(again.decoders[0].file.sha256, tuned.decoders[0].file.sha256);
  EXPECT_THAT(again.notes.at("retuned"), StartsWith("chat: 1 passes over calibration.jsonl sha256 "));
}

TEST_F(AludelJobTest, DecodersMayReadAFewDirectionsOfSideInformation) {
  ASSERT_TRUE(Run().ok());
  const double all = Manifest().formats[0].decoders[0].expected->kl;
  job_.options.side_rank = 64;
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat few = Manifest().formats[0];
  EXPECT_LT(few.decoders[0].expected->kl, 4 * all);
  const auto side_of = [&](const ArtifactDecoder& decoder) {
    const ModelConfig config = ModelConfig::Load("deploy/demo/chat").value();
    const ArtifactManifest manifest = Manifest();
    const ArtifactFormat& format = manifest.formats[0];
    const auto weights = LoadAludelDecoder(manifest, format, decoder, config.kv_dim(), config.hidden);
    EXPECT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->groups[0].linear.cols, 64 + format.aludel.groups[0].rank);
    return weights->side.values;
  };

  job_.options.side_rank = 0;
  job_.base.add = true;
  job_.base.consumers = {"deploy/demo/base+deploy/demo/json"};
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat both = Manifest().formats[0];
  EXPECT_EQ(both.encoder.sha256, few.encoder.sha256);
  EXPECT_EQ(side_of(both.decoders[0]), side_of(both.decoders[1]));

  job_.base.add = false;
  job_.retune = true;
  job_.options.linear = false;
  job_.options.tuning.passes = 1;
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat tuned = Manifest().formats[0];
  EXPECT_NE(tuned.decoders[1].file.sha256, both.decoders[1].file.sha256);
  EXPECT_EQ(side_of(tuned.decoders[1]), side_of(tuned.decoders[0]));

  job_.retune = false;
  job_.options.side_rank = 8192;
  EXPECT_THAT(std::string(Run().message()), HasSubstr("--side-rank is 8192, want at most "));
}

// Two questions each about some passages of the demo's calibration prompts; the second has no answer there.
void WritePassages(const std::string& path, int first, int count) {
  std::ifstream from("deploy/demo/calibration.jsonl");
  std::ofstream to(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(from, line);) lines.push_back(nlohmann::json::parse(line));
  for (int i = first; i < first + count; ++i) {
    for (const int asked : {i, i + 1}) {
      nlohmann::json line = lines[i];
      line["question"] = lines[asked]["question"];
      to << line.dump() << "\n";
    }
  }
}

TEST_F(AludelJobTest, CorrectionsOfLowRankLowerTheKlOfPassagesThatTheyHaveNotSeen) {
  job_.recomputed_layers = 0;
  job_.bytes_per_token = 200;
  job_.sensitivity_prompts = 0;
  job_.tuning_data = directory_ + "/passages.jsonl";
  job_.options.passages.epochs = 4;
  job_.options.passages.learning_rate = 3e-3;
  job_.keep_work = true;
  WritePassages(job_.tuning_data, /*first=*/20, /*count=*/40);
  const auto run = [&](double* first, double* best) {
    ::testing::internal::CaptureStdout();
    const absl::Status status = Run();
    const std::string said = ::testing::internal::GetCapturedStdout();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(said, HasSubstr("80 prompts about 40 passages"));
    const size_t at = said.find("KL tuned from ");
    EXPECT_NE(at, std::string::npos) << said;
    EXPECT_EQ(std::sscanf(said.c_str() + at, "KL tuned from %lf to %lf", first, best), 2);
  };
  double first = 0, best = 0;
  run(&first, &best);
  EXPECT_LT(best, 0.95 * first);
  const ArtifactFormat tuned = Manifest().formats[0];
  EXPECT_EQ(tuned.notes.at("decoder"), "linear, tuned by corrections of rank 32");

  // As after an interruption at the end: everything is found again.
  run(&first, &best);
  EXPECT_EQ(Manifest().formats[0].decoders[0].file.sha256, tuned.decoders[0].file.sha256);

  // The decoders as they are now are where a second tuning starts.
  job_.options.linear = false;
  job_.retune = true;
  double again = 0;
  run(&again, &best);
  EXPECT_LT(again, 0.97 * first);
  EXPECT_LE(best, again);
  EXPECT_THAT(Manifest().formats[0].notes.at("retuned"),
              StartsWith("chat: 80 prompts of passages.jsonl sha256 "));
}

TEST_F(AludelJobTest, AConsumerMayBeABaseWithAnAdapter) {
  const TemporaryDirectory adapter;
  WriteAdapter(adapter, "deploy/demo/chat", 0.002f);
  job_.base.consumers = {"deploy/demo/chat+" + adapter.path()};
  const absl::Status status = Run();
  ASSERT_TRUE(status.ok()) << status;
  const ArtifactManifest manifest = Manifest();
  const ArtifactDecoder& decoder = manifest.formats[0].decoders[0];
  EXPECT_THAT(decoder.consumer, StartsWith("chat+"));
  EXPECT_EQ(decoder.consumer_hash, HashModel({"deploy/demo/chat", adapter.path()}).value());
  EXPECT_NE(decoder.consumer_hash, HashModel("deploy/demo/chat").value());
  const std::map<std::string, double> kl = Measure();
  EXPECT_LT(kl.at("aludel-p5"), 0.5 * kl.at("raw"));
}

// A tune with YaRN over another base of its frequencies: its cache is the producer's rotated otherwise, and
// what else differs the decoder is fitted to.
TEST_F(AludelJobTest, APairMayDifferInItsRope) {
  const TemporaryDirectory tune;
  for (const auto& file : std::filesystem::directory_iterator("deploy/demo/chat")) {
    std::filesystem::copy_file(file.path(), tune.File(file.path().filename().string()));
  }
  nlohmann::json config = nlohmann::json::parse(tune.Read("config.json"));
  config["rope_theta"] = 250000.0;
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 1024}};
  tune.Write("config.json", config.dump());
  job_.base.consumers = {tune.path()};
  const absl::Status status = Run();
  ASSERT_TRUE(status.ok()) << status;
  const std::map<std::string, double> kl = Measure();
  EXPECT_LT(kl.at("aludel-p5"), 0.5 * kl.at("raw"));
}

TEST_F(AludelJobTest, RetunesDecodersThatAreThere) {
  job_.retune = true;
  EXPECT_EQ(Run().code(), absl::StatusCode::kNotFound);
  job_.retune = false;
  ASSERT_TRUE(Run().ok());
  job_.retune = true;
  job_.options.linear = false;
  job_.base.consumers = {"deploy/demo/base+deploy/demo/json"};
  EXPECT_THAT(std::string(Run().message()), HasSubstr("no decoder for this model"));
}

TEST_F(AludelJobTest, NamesTheFloorWhereALossCannotBeMet) {
  job_.bytes_per_token.reset();
  job_.max_kl = 1e-9;
  const absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("p=5, "));
  EXPECT_FALSE(std::filesystem::exists(job_.base.out));
}

TEST_F(AludelJobTest, MeetsALossThatCanBeMet) {
  job_.bytes_per_token.reset();
  job_.max_kl = 0.5;
  ASSERT_TRUE(Run().ok());
  const ArtifactManifest manifest = Manifest();
  const ArtifactFormat& format = manifest.formats[0];
  EXPECT_EQ(format.max_kl, 0.5);
  ASSERT_TRUE(format.decoders[0].expected.has_value());
  EXPECT_GT(format.decoders[0].expected->kl, 0);
  EXPECT_LT(format.decoders[0].expected->kl, 0.5);
  EXPECT_GT(format.decoders[0].expected->bytes_per_token, 0);
}

TEST_F(AludelJobTest, APlanOfWhatDoesNotFitIsRefusedBeforeAnythingIsLoaded) {
  job_.max_memory = 1'000'000;
  absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--max-memory is 1.0 MB"), HasSubstr("it would fit with ")));
  job_.max_memory = 0;
  job_.max_disk = 10'000;
  status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-disk is 10.0 KB"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(AludelJobTest, ADryRunPrintsThePlanAndLeavesNothing) {
  job_.dry_run = true;
  job_.base.out = directory_ + "/not/there/codec";
  job_.options.linear = false;
  ::testing::internal::CaptureStdout();
  absl::Status status = Run();
  std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(status.ok()) << status;
  for (const char* part : {"prefills", "sensitivity", "encoders", "training", "tuning", "measurement",
                           "needs ", " of disk, about "}) {
    EXPECT_THAT(said, HasSubstr(part));
  }
  job_.device_flops = 1e15;
  job_.device_bandwidth = 4e12;
  ::testing::internal::CaptureStdout();
  status = Run();
  said = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, HasSubstr("on a device of 1e+15 FLOP/s"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(AludelJobTest, ReportsWhatItPlannedAndWhatItTook) {
  job_.sensitivity_prompts = 0;
  ASSERT_TRUE(Run().ok());
  std::ifstream file(job_.base.out + ".report/aludel-p5.json");
  const nlohmann::json report = nlohmann::json::parse(file);
  EXPECT_EQ(report["tried"].size(), 1u);
  EXPECT_EQ(report["chosen"]["recomputed_layers"], 5);
  EXPECT_DOUBLE_EQ(report["chosen"]["kl"].get<double>(), Manifest().formats[0].decoders[0].expected->kl);
  // Layers 6 and 7 are one group. Its latents come the largest first.
  ASSERT_EQ(report["spectra"].size(), 1u);
  const nlohmann::json& spectrum = report["spectra"][0];
  EXPECT_EQ(spectrum["first_layer"], 6);
  EXPECT_EQ(spectrum["layers"], 2);
  EXPECT_EQ(spectrum["latents"], Manifest().formats[0].aludel.groups[0].rank);
  EXPECT_GE(spectrum["fitted"], spectrum["latents"]);
  double before = 1.0 / 8;
  for (const char* part : {"energy_of_first_eighth", "energy_of_first_quarter", "energy_of_first_half"}) {
    EXPECT_GT(spectrum[part].get<double>(), before) << part;
    before = spectrum[part].get<double>();
  }
  EXPECT_LT(before, 1);
  EXPECT_GT(spectrum["energy_sent"].get<double>(), 0.5);
  EXPECT_LE(spectrum["energy_sent"].get<double>(), 1);
  const std::optional<CodeRange> range = Manifest().formats[0].aludel.range;
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(report["chosen"]["end_share"], range->end_share);
  EXPECT_EQ(report["chosen"]["code_digits"], range->digits);
  std::ifstream text(job_.base.out + ".report/aludel-p5.txt");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(text), {}),
              AllOf(HasSubstr("Energy of each group's latents"), HasSubstr("\n6-7 "),
                    HasSubstr("One rate was tried: this is no curve")));
  ASSERT_EQ(report["layers"].size(), 2u) << "layers 6 and 7 are coded";
  EXPECT_EQ(report["layers"][1]["layer"], 7);
  // All directions count alike here, so that the group's error is about the mean of its layers', K's and V's.
  double sum = 0;
  for (const auto& layer : report["layers"])
    sum += layer["k_error"].get<double>() + layer["v_error"].get<double>();
  const double whole = report["chosen"]["consumers"][0]["held_out_error"][0];
  EXPECT_NEAR(sum / 4, whole, 0.3 * whole);
  double planned = 0, took = 0;
  for (const auto& stage : report["stages"]) {
    planned += stage["planned_most_seconds"].get<double>();
    took += stage["seconds"].get<double>();
    EXPECT_GT(stage["memory_bytes"].get<int64_t>(), 0) << stage;
  }
  EXPECT_GT(planned, took / 20) << "of the right order";
  EXPECT_LT(planned, 20 * took);
  EXPECT_LT(took, report["seconds"].get<double>());
}

TEST_F(AludelJobTest, AReportThatCannotBeWrittenIsNoFailure) {
  std::ofstream(job_.base.out + ".report") << "in the way";
  ::testing::internal::CaptureStdout();
  const absl::Status status = Run();
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, HasSubstr("warning: there is no report: " + job_.base.out + ".report"));
  EXPECT_EQ(Manifest().formats.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(job_.base.out + ".work"));
}

TEST_F(AludelJobTest, TrainingTokensBoundWhatADecoderIsFittedTo) {
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat all = Manifest().formats[0];
  job_.options.training_tokens = int64_t{1} << 40;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Manifest().formats[0].decoders[0].file.sha256, all.decoders[0].file.sha256)
      << "no more than there are";
  job_.options.training_tokens = 600;
  ASSERT_TRUE(Run().ok());
  const ArtifactFormat few = Manifest().formats[0];
  EXPECT_EQ(few.encoder.sha256, all.encoder.sha256);
  EXPECT_NE(few.decoders[0].file.sha256, all.decoders[0].file.sha256);
  const std::map<std::string, double> kl = Measure();
  EXPECT_LT(kl.at("aludel-p5"), 0.8 * kl.at("raw"));
}

TEST_F(AludelJobTest, ABudgetTakesWhatFitsAndTheArtifactIsWhole) {
  job_.base.prompts = 100;
  job_.options.linear = false;
  job_.budget = 20;
  job_.options.training.steps = 20'000;
  ::testing::internal::CaptureStdout();
  const absl::Status status = RunInBudget();
  const std::string said = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, AllOf(HasSubstr(" buys "), HasSubstr(" of 20000 steps"),
                          HasSubstr("the whole job takes about ")));
  EXPECT_LT(ReportedSeconds(), 1.5 * job_.budget);
  EXPECT_GT(Manifest().formats[0].decoders[0].expected->kl, 0);
  const std::map<std::string, double> kl = Measure();
  EXPECT_LT(kl.at("aludel-p5"), 0.8 * kl.at("raw"));
}

TEST_F(AludelJobTest, ABudgetEndsASearchForALoss) {
  job_.base.prompts = 100;
  job_.options.linear = false;
  job_.options.training.steps = 20'000;
  job_.bytes_per_token.reset();
  job_.max_kl = 2;  // that anything meets, and which leaves much to narrow
  job_.budget = 20;
  const absl::Status status = RunInBudget();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(ReportedSeconds(), 1.5 * job_.budget);
  EXPECT_LE(Manifest().formats[0].decoders[0].expected->kl, 2);
}

TEST_F(AludelJobTest, FitsTheEncoderToTheProducerAlone) {
  job_.options.encoder_source = EncoderSource::kProducer;
  ASSERT_TRUE(Run().ok());
  const std::string hash = Manifest().formats[0].encoder.sha256;
  job_.base.consumers = {"deploy/demo/base+deploy/demo/json"};
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Manifest().formats[0].encoder.sha256, hash) << "an encoder that no consumer had a say in";
}

TEST_F(AludelJobTest, ComputeShareBoundsRankAndUniformBitsFillIt) {
  job_.options.compute_share = 0.05;
  ASSERT_TRUE(Run().ok());
  // Half of 5 % of the demo's 12.1 MFLOP a token, over 2 * (2 layers * 256 + 256) FLOP a latent.
  const int64_t bound = Manifest().formats[0].aludel.groups[0].rank;
  EXPECT_LE(bound, 197);
  EXPECT_GT(bound, 16);
  // Where that is what bounds it, calibration says so.
  for (const auto& [share, bounds] : {std::pair{0.01, true}, std::pair{0.4, false}}) {
    job_.options.compute_share = share;
    testing::internal::CaptureStdout();
    const absl::Status ran = Run();
    const std::string said = testing::internal::GetCapturedStdout();
    ASSERT_TRUE(ran.ok()) << ran;
    EXPECT_EQ(absl::StrContains(said, "than --compute-share pays for"), bounds) << share << "\n" << said;
  }
  job_.options.compute_share = 0.05;
  job_.options.allocation = BitAllocation::kUniform;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Manifest().formats[0].aludel.groups[0].rank, 128);  // 64 bytes of four bits
}

}  // namespace
}  // namespace aludel
