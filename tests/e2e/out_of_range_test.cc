// A prompt that a codec cannot hold is computed by the decode server itself.

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFormat[] = "aludel-p2";
constexpr char kFallbacks[] = "aludel_fallbacks_total{reason=\"out_of_range\"}";
// Of the demo models.
constexpr int64_t kKvDim = 128, kHidden = 256;

// The demo's format alone, with latents so many times as large as they were when its ranges were made: as of prompts that are
// as much unlike those. `digits`: what calibration is to have seen.
std::string ScaledCodec(const std::string& name, float times, const std::vector<double>& digits) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(directory);
  const ArtifactManifest demo = LoadArtifactManifest("deploy/demo/codec").value();
  ArtifactFormat format = **demo.Find(kFormat);
  format.aludel.range.value().digits = digits;
  AludelEncoderWeights encoder = LoadAludelEncoder(demo, format, kKvDim, kHidden).value();
  for (AludelEncoderGroup& group : encoder) {
    for (std::vector<float>* const values : {&group.matrix.values, &group.side.values, &group.offset}) {
      for (float& value : *values) value *= times;
    }
  }
  ArtifactWriter writer = ArtifactWriter::Begin(directory).value();
  format.encoder = writer.AddEncoder(kFormat, encoder).value();
  for (const ArtifactDecoder& decoder : format.decoders) EXPECT_TRUE(writer.Keep(demo, decoder.file).ok());
  ArtifactManifest manifest{.producer = demo.producer, .producer_hash = demo.producer_hash};
  manifest.formats.push_back(std::move(format));
  EXPECT_TRUE(writer.Publish(manifest).ok());
  return directory;
}

class OutOfRange : public ::testing::Test {
 protected:
  void Start(float times, const std::vector<double>& digits = {}) {
    FleetOptions options;
    options.decode_model = "deploy/demo/chat";
    artifact_ = ScaledCodec("out_of_range_codec", times, digits);
    options.codec = absl::StrCat("artifact: '", artifact_, "' formats: ['", kFormat, "']");
    fleet_ = std::make_unique<Fleet>(options);
    ASSERT_TRUE(fleet_->Start());
  }
  ~OutOfRange() override { std::filesystem::remove_all(artifact_); }

  std::string artifact_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_F(OutOfRange, APromptIsAnsweredAsByLocalPrefill) {
  Start(8);
  double fallbacks = 0;
  for (const auto& prompt : DemoPrompts(3)) {
    v1::GenerateRequest exact = Fleet::Request(prompt, 12, "");
    exact.set_fidelity(v1::FIDELITY_EXACT);
    const Answer oracle = fleet_->Ask(exact);
    ASSERT_EQ(oracle.started.plan(), "local");
    const Answer answer = fleet_->Ask(Fleet::Request(prompt, 12, kFormat));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "fallback");
    EXPECT_THAT(
        answer.started.fallback_reason(),
        AllOf(HasSubstr("OUT_OF_RANGE: layers 3-7: "), HasSubstr(" codes are at the end of their range"),
              HasSubstr("the prompt is unlike what the codec was fitted to")));
    EXPECT_EQ(answer.tokens, oracle.tokens);
    EXPECT_EQ(fleet_->decode().Metric(kFallbacks), ++fallbacks);
  }
  EXPECT_TRUE(fleet_->DecodeIsIdle());
  EXPECT_TRUE(fleet_->PrefillIsIdle());
  EXPECT_TRUE(fleet_->WaitPrefillState("ready")) << "no fault of the prefill server's";
}

TEST_F(OutOfRange, SoIsOneWhoseCodesAreLargerThanCalibrationSaw) {
  Start(1, {0.1});
  const std::vector<int32_t> prompt = DemoPrompts(1)[0];
  ASSERT_GT(prompt.size(), 80u) << "less than 64 tokens behind the head tell nothing";
  const Answer answer = fleet_->Ask(Fleet::Request(prompt, 2, kFormat));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "fallback");
  EXPECT_THAT(
      answer.started.fallback_reason(),
      AllOf(HasSubstr("OUT_OF_RANGE: layers 3-7: codes have "),
            HasSubstr(" binary digits on average (artifact expects at most 0.100, and 0.110 are taken)")));
}

TEST_F(OutOfRange, OrdinaryPromptsAreHandedOver) {
  Start(1);
  for (const auto& prompt : DemoPrompts(20)) {
    const Answer answer = fleet_->Ask(Fleet::Request(prompt, 2, kFormat));
    EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  }
}

}  // namespace
}  // namespace aludel
