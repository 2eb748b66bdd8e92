#include "server/host/adapter_codecs.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/bench/make_codec.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/model/weights/weight_stream.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kBase[] = "deploy/demo/chat";
constexpr char kFormat[] = "aludel-p1";

// An artifact with random decoders for adapters over the demo's model.
class AdapterCodecsTest : public ::testing::Test {
 protected:
  AdapterCodecsTest() {
    for (int i = 1; i <= 2; ++i) {
      EXPECT_TRUE(
          MakeAdapter({.base = kBase, .out = Directory(i), .rank = 2, .seed = static_cast<uint64_t>(i)})
              .ok());
    }
  }
  std::string Directory(int adapter) const { return files_.File(absl::StrCat("a", adapter)); }
  std::string Artifact() const { return files_.File("codec"); }
  std::string Hash(int adapter) const { return HashModel({kBase, Directory(adapter)}).value(); }
  // Of one format, and a decoder of it for this adapter alone. Equal seeds make equal encoders.
  void Calibrate(int adapter, uint64_t seed) {
    const absl::StatusOr<MadeCodec> made =
        MakeCodec({.producer = "deploy/demo/base",
                   .consumer = absl::StrCat(kBase, "+", Directory(adapter)),
                   .out = Artifact(),
                   .recomputed_layers = 1,
                   .seed = seed});
    ASSERT_TRUE(made.ok()) << made.status();
  }
  AdapterCodecs Create(const std::vector<std::string>& formats = {}, bool adapters = true) {
    return AdapterCodecs::Create({.artifact = Artifact(), .formats = formats, .adapters = adapters},
                                 model_.get())
        .value();
  }

  const TemporaryDirectory files_;
  const std::unique_ptr<Device> device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  const std::unique_ptr<Transformer> model_ =
      Transformer::Load(device_.get(), {kBase}, {.compute = DType::kF32, .max_rows = 16}).value();
};

TEST_F(AdapterCodecsTest, ADecoderIsForTheAdapterThatItWasFittedTo) {
  Calibrate(1, /*seed=*/1);
  const AdapterCodecs codecs = Create();
  ASSERT_THAT(codecs.formats(), SizeIs(1));
  const AdapterCodecs::Opened opened = codecs.Open(Hash(1));
  ASSERT_THAT(opened.decoders, SizeIs(1));
  EXPECT_EQ(opened.decoders[0]->spec().name, kFormat);
  EXPECT_EQ(opened.decoders[0]->spec().artifact_hash, codecs.formats()[0].encoder_hash);
  EXPECT_THAT(opened.losses, IsEmpty()) << "nothing was measured";
  EXPECT_THAT(codecs.Open(Hash(2)).decoders, IsEmpty());
  EXPECT_THAT(codecs.Open(model_->hash()).decoders, IsEmpty());
}

TEST_F(AdapterCodecsTest, ADecoderThatIsAddedLaterCountsAndOneOfAnotherEncoderDoesNot) {
  Calibrate(1, /*seed=*/1);
  const AdapterCodecs codecs = Create();
  Calibrate(2, /*seed=*/1);
  EXPECT_THAT(codecs.Open(Hash(2)).decoders, SizeIs(1));
  Calibrate(2, /*seed=*/2);
  EXPECT_THAT(codecs.Open(Hash(2)).decoders, IsEmpty()) << "prefill servers were asked for the other's codes";
  EXPECT_THAT(Create().Open(Hash(2)).decoders, SizeIs(1));
}

TEST_F(AdapterCodecsTest, TellsOfWhichFormatsAnotherArtifactHasOthers) {
  Calibrate(1, /*seed=*/1);
  const AdapterCodecs first = Create();
  EXPECT_THAT(first.ChangedIn(Create()), IsEmpty());
  EXPECT_THAT(AdapterCodecs().ChangedIn(first), IsEmpty()) << "of what there was none, nothing is known";
  EXPECT_THAT(first.ChangedIn(AdapterCodecs()), ElementsAre(kFormat));

  const ArtifactManifest old = LoadArtifactManifest(Artifact()).value();
  ArtifactManifest manifest;
  manifest.producer_hash = old.producer_hash;
  ArtifactWriter writer = ArtifactWriter::Begin(Artifact()).value();
  ASSERT_TRUE(KeepFormats(old, {}, /*replace_controls=*/false, &writer, &manifest).ok());
  std::vector<ArtifactDecoder>& decoders = manifest.formats[0].decoders;
  decoders.push_back({"chat+a2", Hash(2), decoders[0].file, std::nullopt});
  ASSERT_TRUE(writer.Publish(manifest).ok());
  EXPECT_THAT(first.ChangedIn(Create()), IsEmpty()) << "a decoder was added";
  EXPECT_THAT(Create().ChangedIn(first), ElementsAre(kFormat)) << "and is gone again";

  Calibrate(2, /*seed=*/1);
  EXPECT_THAT(first.ChangedIn(Create()), ElementsAre(kFormat))
      << "the same encoder, without the first decoder";
  Calibrate(1, /*seed=*/2);
  EXPECT_THAT(first.ChangedIn(Create()), ElementsAre(kFormat)) << "another encoder";
}

// As aludel-calibrate --share leaves it.
TEST_F(AdapterCodecsTest, ADecoderOfTheBaseIsForTheAdaptersThatTheArtifactNames) {
  ASSERT_TRUE(MakeCodec({.producer = "deploy/demo/base",
                         .consumer = kBase,
                         .out = Artifact(),
                         .recomputed_layers = 1,
                         .seed = 1})
                  .ok());
  const AdapterCodecs codecs = Create();
  EXPECT_THAT(codecs.Open(Hash(1)).decoders, IsEmpty());
  const ArtifactManifest old = LoadArtifactManifest(Artifact()).value();
  ArtifactManifest manifest;
  manifest.producer_hash = old.producer_hash;
  ArtifactWriter writer = ArtifactWriter::Begin(Artifact()).value();
  ASSERT_TRUE(KeepFormats(old, {}, /*replace_controls=*/false, &writer, &manifest).ok());
  std::vector<ArtifactDecoder>& decoders = manifest.formats[0].decoders;
  decoders.push_back({"chat+a1", Hash(1), decoders[0].file, ExpectedLoss{0.25, 60}});
  ASSERT_TRUE(writer.Publish(manifest).ok());

  const AdapterCodecs::Opened opened = codecs.Open(Hash(1));
  ASSERT_THAT(opened.decoders, SizeIs(1));
  EXPECT_THAT(opened.losses, ElementsAre(Pair(kFormat, 0.25)));
  EXPECT_THAT(opened.shared, ElementsAre(Pair(kFormat, "chat")));
  EXPECT_THAT(codecs.Open(model_->hash()).shared, IsEmpty());
  EXPECT_THAT(codecs.Open(Hash(2)).decoders, IsEmpty()) << "only what was measured";
}

// The demo's codes in planes, by a decoder that is an adapter's, too.
TEST_F(AdapterCodecsTest, AnAdapterTakesCutsOfItsFormats) {
  const ArtifactManifest demo = LoadArtifactManifest("deploy/demo/codec").value();
  ArtifactFormat format = **demo.Find("aludel-p2");
  const ModelConfig& config = model_->config();
  AludelEncoderWeights encoder = LoadAludelEncoder(demo, format, config.kv_dim(), config.hidden).value();
  AludelDecoderWeights decoder =
      LoadAludelDecoder(demo, format, format.decoders[0], config.kv_dim(), config.hidden).value();
  for (auto& group : encoder) group.grid.planes = 3;
  for (auto& group : decoder.groups) group.grid.planes = 3;
  ArtifactWriter writer = ArtifactWriter::Begin(Artifact()).value();
  format.aludel.packing = LatentPacking::kEmbedded;
  format.encoder = writer.AddEncoder(format.name, encoder).value();
  format.decoders = {
      {"chat+a1", Hash(1), writer.AddDecoder(format.name, "a1", decoder).value(), ExpectedLoss{0.25, 60}}};
  ArtifactManifest manifest;
  manifest.producer_hash = demo.producer_hash;
  manifest.formats = {format};
  ASSERT_TRUE(writer.Publish(manifest).ok());

  const AdapterCodecs codecs = Create({"aludel-p2@2", "aludel-p2", "aludel-p3@2", "raw"});
  ASSERT_THAT(codecs.formats(), SizeIs(2));
  EXPECT_EQ(codecs.formats()[0].name, "aludel-p2@2");
  EXPECT_EQ(codecs.formats()[0].encoder_hash, format.encoder.sha256);
  const AdapterCodecs::Opened opened = codecs.Open(Hash(1));
  ASSERT_THAT(opened.decoders, SizeIs(2));
  EXPECT_EQ(opened.decoders[0]->spec().name, "aludel-p2@2");
  EXPECT_EQ(codecs.formats()[0].Spec().kind, opened.decoders[0]->spec().kind)
      << "or it would not be stored as a cut";
  EXPECT_EQ(opened.decoders[1]->spec().name, "aludel-p2");
  EXPECT_THAT(opened.losses, ElementsAre(Pair("aludel-p2", 0.25))) << "of whole codes";
  EXPECT_THAT(codecs.Open(Hash(2)).decoders, IsEmpty());
}

TEST_F(AdapterCodecsTest, WhatCannotBeOpenedIsLeftOut) {
  Calibrate(1, /*seed=*/1);
  const AdapterCodecs codecs = Create();
  const ArtifactManifest manifest = LoadArtifactManifest(Artifact()).value();
  std::filesystem::resize_file(absl::StrCat(Artifact(), "/", manifest.formats[0].decoders[0].file.file),
                               1000);
  EXPECT_THAT(codecs.Open(Hash(1)).decoders, IsEmpty());
  std::filesystem::remove(absl::StrCat(Artifact(), "/", kArtifactManifest));
  EXPECT_THAT(codecs.Open(Hash(1)).decoders, IsEmpty());
}

// As for the model itself: such frames go to libavcodec.
TEST_F(AdapterCodecsTest, TakesPackingVideoOnlyWhereItIsNamed) {
  Calibrate(1, /*seed=*/1);
  const ArtifactManifest old = LoadArtifactManifest(Artifact()).value();
  ArtifactManifest manifest;
  manifest.producer_hash = old.producer_hash;
  ArtifactWriter writer = ArtifactWriter::Begin(Artifact()).value();
  ASSERT_TRUE(KeepFormats(old, {}, /*replace_controls=*/false, &writer, &manifest).ok());
  manifest.formats[0].aludel.packing = LatentPacking::kVideo;
  ASSERT_TRUE(writer.Publish(manifest).ok());
  EXPECT_THAT(Create().formats(), IsEmpty());
  EXPECT_THAT(Create({kFormat}).formats(), SizeIs(1));
}

TEST_F(AdapterCodecsTest, OffersWhatTheSettingsName) {
  Calibrate(1, /*seed=*/1);
  EXPECT_THAT(Create({"raw"}).formats(), IsEmpty());
  EXPECT_THAT(Create({"raw", kFormat}).formats(), SizeIs(1));
  EXPECT_THAT(Create({}, /*adapters=*/false).formats(), IsEmpty());
  EXPECT_THAT(AdapterCodecs().Open(Hash(1)).decoders, IsEmpty());
  const auto missing =
      AdapterCodecs::Create({.artifact = files_.File("none"), .formats = {}, .adapters = true}, model_.get());
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none"));
}

}  // namespace
}  // namespace aludel
