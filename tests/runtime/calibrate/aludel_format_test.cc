#include "runtime/calibrate/aludel_format.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr int kLayers = 2;
constexpr int64_t kRank = 3, kWidth = 4, kKvDim = 4, kHidden = 8;

// A job's outcome of two coded layers, without any model.
class AludelFormat : public ::testing::Test {
 protected:
  AludelFormat() {
    job_.base.producer = "models/base";
    job_.base.consumers = {"models/chat"};
    job_.base.out = directory_.File("codec");
    job_.base.data = directory_.File("text.jsonl");
    directory_.Write("text.jsonl", "{}\n");
    config_.layers = kLayers;
    config_.hidden = kHidden;
    config_.heads = config_.kv_heads = 1;
    config_.head_dim = kKvDim;
    prompts_.train = {{1, 2, 3}, {4, 5}};
    prompts_.held_out = {{6}};
  }

  AludelCandidate Candidate(int64_t width) const {
    AludelCandidate candidate;
    candidate.shape.groups = {{0, kLayers, kRank}};
    const int64_t outputs = kLayers * 2 * kKvDim;
    const LatentGrid grid{0.5F, std::vector<int>(kRank, 4)};
    candidate.encoder = {{HostMatrix::Zeros(kRank, outputs), {}, std::vector<float>(kRank), grid}};
    FittedDecoder decoder;
    decoder.width = width;
    AludelDecoderGroup group{.grid = grid, .bias = std::vector<float>(outputs)};
    if (width == 0) {
      group.linear = HostMatrix::Zeros(outputs, kRank);
    } else {
      group.hidden = HostMatrix::Zeros(width, kRank);
      group.hidden_bias.resize(width);
      group.out = HostMatrix::Zeros(outputs, width);
    }
    decoder.weights.groups = {std::move(group)};
    candidate.decoders.assign(job_.base.consumers.size(), decoder);
    candidate.measured.assign(job_.base.consumers.size(),
                              {.kl = 0.25, .kl_bound = 0.3, .bytes_per_token = 12});
    candidate.range = {end_share_, {digits_}};
    return candidate;
  }

  std::optional<ArtifactManifest> Old() const { return FindArtifact(job_.base.out).value(); }
  void Save(int64_t width = kWidth) {
    const AludelCandidate chosen = Candidate(width);
    const auto name = SaveFormat(job_, Old(), models_, {chosen, prompts_, tuning_prompts_});
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(*name, FormatName(job_, chosen.shape.recomputed_layers));
  }
  absl::StatusOr<OldFormat> LoadOld(const std::string& name) const {
    return LoadOldFormat(job_, Old(), name, models_, config_);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const ArtifactManifest manifest = *Old();
    for (const ArtifactFormat& format : manifest.formats) names.push_back(format.name);
    return names;
  }

  const TemporaryDirectory directory_;
  AludelJob job_;
  ModelHashes models_{std::string(64, 'a'), {std::string(64, 'b')}};
  ModelConfig config_;
  CalibrationPrompts prompts_;
  size_t tuning_prompts_ = 0;
  double end_share_ = 0.02, digits_ = 0.5;
};

TEST_F(AludelFormat, StandsFirstWhereItIsNewAndKeepsItsPlaceWhereItIsNot) {
  for (const char* name : {"one", "two", "three"}) {
    job_.format = name;
    Save();
  }
  EXPECT_THAT(Names(), ElementsAre("three", "two", "one"));
  job_.format = "two";
  Save();
  EXPECT_THAT(Names(), ElementsAre("three", "two", "one"));
}

TEST_F(AludelFormat, SaysHowItWasMadeAndWhatItLoses) {
  job_.max_kl = 0.4;
  job_.tuning_data = directory_.File("text.jsonl");
  tuning_prompts_ = 7;
  job_.options.training.steps = 11;
  Save();
  const ArtifactFormat format = Old()->formats[0];
  EXPECT_EQ(format.name, "aludel-p0");
  EXPECT_EQ(format.max_kl, 0.4);
  EXPECT_THAT(format.notes.at("data"), MatchesRegex("text.jsonl sha256 [0-9a-f]+"));
  EXPECT_EQ(format.notes.at("prompts"), "2 fitted (5 tokens), 1 held out");
  EXPECT_THAT(format.notes.at("tuning data"), HasSubstr("7 prompts of text.jsonl"));
  EXPECT_THAT(format.notes.at("decoder"), HasSubstr("MLP of width 4, 11 steps"));
  ASSERT_EQ(format.decoders.size(), 1u);
  EXPECT_EQ(format.decoders[0].consumer, "chat");
  EXPECT_EQ(format.decoders[0].expected->kl, 0.25);
  job_.options.linear = true;
  Save(/*width=*/0);
  EXPECT_EQ(Old()->formats[0].notes.at("decoder"), "linear, tuned by corrections of rank 32");
  tuning_prompts_ = 0;
  Save(/*width=*/0);
  EXPECT_EQ(Old()->formats[0].notes.at("decoder"), "linear, closed form");
}

TEST_F(AludelFormat, ExtendedKeepsNotesAndTheDecodersOfOtherConsumers) {
  job_.max_kl = 0.4;
  Save();
  const ArtifactFormat before = Old()->formats[0];
  job_.base.add = true;
  job_.max_kl = 0.1;
  job_.base.consumers = {"models/json"};
  models_.consumers = {std::string(64, 'c')};
  Save();
  ArtifactFormat format = Old()->formats[0];
  EXPECT_EQ(format.notes, before.notes);
  EXPECT_EQ(format.max_kl, 0.4);
  ASSERT_EQ(format.decoders.size(), 2u);
  EXPECT_EQ(format.decoders[0].file.sha256, before.decoders[0].file.sha256);
  EXPECT_EQ(format.decoders[1].consumer, "json");

  job_.base.add = false;
  job_.retune = true;
  for (int i = 0; i < 2; ++i) Save();
  format = Old()->formats[0];
  EXPECT_EQ(format.decoders.size(), 2u) << "replaced, not added";
  EXPECT_THAT(format.notes.at("retuned"), MatchesRegex("json: .* passes over text.jsonl .*; json: .*"));

  job_.retune = false;
  Save();
  EXPECT_EQ(Old()->formats[0].decoders.size(), 1u) << "a new encoder fits no old decoder";
}

TEST_F(AludelFormat, ExtendedIsAskedForWhatItHasMetSoFar) {
  const auto saved = [&] {
    Save();
    const CodeRange range = Old()->formats[0].aludel.range.value();
    return std::make_pair(range.end_share, range.digits.at(0));
  };
  EXPECT_EQ(saved(), std::make_pair(0.02, 0.5));
  job_.base.add = true;
  EXPECT_FALSE(LoadOld("aludel-p0")->shape.range.has_value()) << "measuring fails no prompt";
  end_share_ = 0.01;
  digits_ = 0.75;
  EXPECT_EQ(saved(), std::make_pair(0.02, 0.75));
  end_share_ = 0.05;
  digits_ = 0.25;
  EXPECT_EQ(saved(), std::make_pair(0.05, 0.75));
  job_.base.add = false;
  end_share_ = 0;
  EXPECT_EQ(saved(), std::make_pair(0.0, 0.25)) << "of another encoder";
}

// What aludel-calibrate --share wrote was measured with the decoder that there was.
TEST_F(AludelFormat, AReplacedDecoderIsNoLongerThoseOfAdaptersThatSharedIt) {
  Save();
  const std::string adapter(64, 'c');
  const auto share = [&] {
    ArtifactManifest manifest;
    manifest.producer_hash = models_.producer;
    ArtifactWriter writer = ArtifactWriter::Begin(job_.base.out).value();
    ASSERT_TRUE(KeepFormats(*Old(), {}, /*replace_controls=*/false, &writer, &manifest).ok());
    auto& decoders = manifest.formats[0].decoders;
    decoders.resize(1);
    decoders.push_back({"chat+tune", adapter, decoders[0].file, ExpectedLoss{0.5, 12}});
    ASSERT_TRUE(writer.Publish(manifest).ok());
  };
  share();
  job_.base.add = true;
  job_.base.consumers = {"models/json"};
  models_.consumers = {std::string(64, 'd')};
  Save();
  EXPECT_EQ(Old()->formats[0].decoders.size(), 3u);

  // Its own takes the adapter's place and leaves the base its decoder.
  share();
  job_.base.consumers = {"models/chat+tune"};
  models_.consumers = {adapter};
  Save();
  ArtifactFormat format = Old()->formats[0];
  ASSERT_EQ(format.decoders.size(), 2u);
  EXPECT_NE(format.decoders[0].file.file, format.decoders[1].file.file);

  share();
  job_.base.consumers = {"models/chat"};
  models_.consumers = {std::string(64, 'b')};
  Save();
  format = Old()->formats[0];
  ASSERT_EQ(format.decoders.size(), 1u);
  EXPECT_EQ(format.decoders[0].consumer, "chat");
}

TEST_F(AludelFormat, IsReadBackWhereAJobExtendsIt) {
  Save();
  job_.base.add = true;
  EXPECT_TRUE(LoadOld("aludel-p0")->decoders.empty());
  job_.retune = true;
  const auto old = LoadOld("aludel-p0");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->shape.groups[0].rank, kRank);
  EXPECT_EQ(old->encoder[0].grid.step, 0.5F);
  ASSERT_EQ(old->decoders.size(), 1u);
  EXPECT_EQ(old->decoders[0].groups[0].hidden.rows, kWidth);
}

TEST_F(AludelFormat, ThatCannotBeExtendedSaysWhy) {
  job_.retune = true;
  EXPECT_THAT(std::string(LoadOld("aludel-p0").status().message()), HasSubstr("holds no artifact to extend"));
  job_.retune = false;
  Save();
  job_.retune = true;
  EXPECT_EQ(LoadOld("aludel-p1").status().code(), absl::StatusCode::kNotFound);
  models_.producer = std::string(64, 'd');
  EXPECT_EQ(LoadOld("aludel-p0").status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace aludel
