#include "server/host/adapter_codecs.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/bench/make_codec.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/model/weights/weight_stream.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
