#include "runtime/calibrate/repack_job.h"

#include <filesystem>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/questions.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

class RepackJobTest : public ::testing::Test {
 protected:
  RepackJobTest() {
    std::filesystem::remove_all(out_);
    std::filesystem::copy("deploy/demo/codec", out_);
    Deflate();
    job_.base.producer = "deploy/demo/base";
    job_.base.consumers = {"deploy/demo/chat"};
    job_.base.data = "deploy/demo/calibration.jsonl";
    job_.base.out = out_;
    job_.base.prompts = 20;
    job_.format = "aludel-p2";
    job_.options.packing = LatentPacking::kRans;
    // Text like that of the scales: other text takes more bytes than deflate gives it.
    const Question question = LoadQuestions("deploy/demo/questions.jsonl", 1).value().front();
    prompt_ = PromptWriter::Load("deploy/demo/chat").value().Write(question).value();
  }
  ~RepackJobTest() override { std::filesystem::remove_all(out_); }

  // The demo's codes as an artifact without scales has them, which readers of such a one leave alone.
  void Deflate() {
    const ArtifactManifest demo = LoadArtifactManifest(out_).value();
    ArtifactWriter writer = ArtifactWriter::Begin(out_).value();
    ArtifactManifest deflated;
    deflated.producer = demo.producer;
    deflated.producer_hash = demo.producer_hash;
    ASSERT_TRUE(KeepFormats(demo, {}, /*replace_controls=*/false, &writer, &deflated).ok());
    for (ArtifactFormat& format : deflated.formats) format.aludel.packing = LatentPacking::kDeflate;
    ASSERT_TRUE(writer.Publish(deflated).ok());
  }

  // What the consumer says after a handoff by the artifact, and the handoff's bytes.
  std::vector<float> Logits(const std::string& artifact, size_t* bytes, const char* name = "aludel-p2") {
    const auto encoders = OpenEncoders(name, artifact, producer_.model()).value();
    const auto decoders = OpenDecoders(name, artifact, consumer_.model()).value();
    const auto tokens = static_cast<int64_t>(prompt_.size()) - 1;
    FrameStore frames(encoders->spec());
    EncodeTask task{encoders.get(), &frames};
    EXPECT_TRUE(EncodePrompt(producer_.model(), *pool_, prompt_, tokens, absl::MakeSpan(&task, 1)).ok());
    *bytes = frames.total_bytes();
    const KvTarget target{&consumer_.model(), &consumer_.pool(), consumer_.table().ids(), prompt_, tokens};
    EXPECT_TRUE(ApplyFrames(frames.frames(), *decoders, target).ok());
    std::vector<float> logits;
    EXPECT_TRUE(RunTokens(consumer_.model(), consumer_.pool(), consumer_.table().ids(), prompt_, tokens,
                          tokens + 1, nullptr, &logits)
                    .ok());
    return logits;
  }

  std::unique_ptr<Device> device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  TestModel producer_{"deploy/demo/base", {}, DType::kBf16, 512};
  TestModel consumer_{"deploy/demo/chat", {}, DType::kBf16, 512};
  std::unique_ptr<BlockPool> pool_ =
      BlockPool::Create(producer_.device(), producer_.model().MakeKvLayout(32, 16, DType::kBf16)).value();
  const std::string out_ = ::testing::TempDir() + "repacked";
  AludelJob job_;
  std::vector<int32_t> prompt_;
};

TEST_F(RepackJobTest, KeepsLatentsAndTakesFewerBytes) {
  size_t deflated = 0, repacked = 0;
  const std::vector<float> want = Logits(out_, &deflated);
  const absl::Status status = RunRepackJob(job_, device_.get());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Logits(out_, &repacked), want);
  EXPECT_LT(static_cast<double>(repacked), 0.97 * static_cast<double>(deflated));

  const ArtifactManifest manifest = LoadArtifactManifest(out_).value();
  const ArtifactManifest old = LoadArtifactManifest("deploy/demo/codec").value();
  ASSERT_EQ(manifest.formats.size(), old.formats.size());
  for (size_t i = 0; i < old.formats.size(); ++i) {
    const ArtifactFormat& format = manifest.formats[i];
    EXPECT_EQ(format.name, old.formats[i].name);
    EXPECT_EQ(format.encoder.sha256 == old.formats[i].encoder.sha256, format.name != "aludel-p2");
    EXPECT_EQ(format.decoders.size(), old.formats[i].decoders.size());
  }
  const ArtifactFormat& format = **manifest.Find("aludel-p2");
  EXPECT_EQ(format.aludel.packing, LatentPacking::kRans);
  EXPECT_THAT(format.notes.at("scales"), HasSubstr("18 prompts of calibration.jsonl"));
  EXPECT_EQ(format.decoders[0].expected->kl, (*old.Find("aludel-p2"))->decoders[0].expected->kl);
}

// The demo's matrices are int8, and the job's storage says bf16.
TEST_F(RepackJobTest, FitsDecaysAndKeepsAllOtherTensorsByteForByte) {
  ASSERT_NE(job_.base.storage, MatrixStorage::kInt8);
  ASSERT_TRUE(RunRepackJob(job_, device_.get()).ok());
  const ArtifactManifest manifest = LoadArtifactManifest(out_).value();
  const ArtifactFormat& format = **manifest.Find("aludel-p2");
  for (const std::string& file : {format.encoder.file, format.decoders[0].file.file}) {
    const auto old = SafetensorsFile::Open("deploy/demo/codec/" + file).value();
    const auto repacked = SafetensorsFile::Open(out_ + "/" + file).value();
    EXPECT_EQ(repacked->entries().size(), old->entries().size());
    bool quantized = false;
    for (const auto& [name, entry] : old->entries()) {
      const auto found = repacked->Find(name);
      ASSERT_TRUE(found.ok()) << found.status();
      if (name == "groups.0.decays") {
        EXPECT_FALSE((*found)->data == entry.data) << file << ": of other prompts";
        continue;
      }
      EXPECT_EQ((*found)->dtype, entry.dtype) << file << ": " << name;
      EXPECT_EQ((*found)->shape, entry.shape) << file << ": " << name;
      EXPECT_TRUE((*found)->data == entry.data) << file << ": " << name;
      quantized = quantized || entry.dtype == "I8";
    }
    EXPECT_TRUE(quantized) << file;
  }
}

TEST_F(RepackJobTest, EmbeddedFramesHoldTheSameLatentsAndTakeCuts) {
  size_t deflated = 0, whole = 0, cut = 0, coarsest = 0;
  const std::vector<float> want = Logits(out_, &deflated);
  job_.options.packing = LatentPacking::kEmbedded;
  job_.options.planes = 3;
  const absl::Status status = RunRepackJob(job_, device_.get());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Logits(out_, &whole), want);
  EXPECT_EQ(Logits(out_, &cut, "aludel-p2@3"), want);
  EXPECT_EQ(cut, whole);
  EXPECT_NE(Logits(out_, &cut, "aludel-p2@2"), want);
  Logits(out_, &coarsest, "aludel-p2@1");
  EXPECT_LT(cut, whole);
  EXPECT_LT(coarsest, cut);
  EXPECT_LT(static_cast<double>(whole), 0.97 * static_cast<double>(deflated));
  EXPECT_THAT(ListCuts(out_).value(), ::testing::ElementsAre("aludel-p2@2", "aludel-p2@1"));

  // Blocks of such a handoff count as those of whole codes.
  const auto cut_encoders = OpenEncoders("aludel-p2@1", out_, producer_.model()).value();
  const auto whole_decoders = OpenDecoders("aludel-p2", out_, consumer_.model()).value();
  const auto tokens = static_cast<int64_t>(prompt_.size()) - 1;
  FrameStore frames(cut_encoders->spec());
  EncodeTask task{cut_encoders.get(), &frames};
  ASSERT_TRUE(EncodePrompt(producer_.model(), *pool_, prompt_, tokens, absl::MakeSpan(&task, 1)).ok());
  const KvTarget target{&consumer_.model(), &consumer_.pool(), consumer_.table().ids(), prompt_, tokens};
  const absl::Status refused = ApplyFrames(frames.frames(), *whole_decoders, target);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(refused.ToString(), HasSubstr("latents are 1 planes, want 3"));

  const auto complaint = [&](const char* name) {
    return OpenDecoders(name, out_, consumer_.model()).status().ToString();
  };
  EXPECT_THAT(complaint("aludel-p2@4"), HasSubstr("format \"aludel-p2\" has 3 planes, not 4"));
  EXPECT_THAT(complaint("aludel-p2@3+"),
              HasSubstr("format \"aludel-p2\" has 3 planes: none comes after the first 3"));
  EXPECT_THAT(complaint("aludel-p2@4+"), HasSubstr("format \"aludel-p2\" has 3 planes, not 4"));
  EXPECT_THAT(complaint("aludel-p0@1+"), HasSubstr("has no planes to be cut at"));
  EXPECT_EQ(OpenDecoders("aludel-p2@1+", out_, consumer_.model()).value()->spec().base_planes, 1);
  EXPECT_EQ(OpenEncoders("aludel-p2@2+", out_, producer_.model()).value()->spec().base_planes, 2);
  EXPECT_THAT(complaint("aludel-p2@"), HasSubstr("does not end with a number of planes"));
  EXPECT_THAT(complaint("aludel-p2@0"), HasSubstr("does not end with a number of planes"));
  EXPECT_THAT(complaint("aludel-p0@1"), HasSubstr("has no planes to be cut at"));
  EXPECT_THAT(complaint("scd@1"), HasSubstr("has no planes to be cut at"));

  job_.options.packing = LatentPacking::kRans;
  EXPECT_THAT(RunRepackJob(job_, device_.get()).ToString(), HasSubstr("aludel-p2 is embedded already"));
}

TEST_F(RepackJobTest, VideoFramesHoldTheSameLatentsAndAreServedWhereTheyAreNamed) {
  size_t deflated = 0, video = 0;
  const std::vector<float> want = Logits(out_, &deflated);
  const std::string encoder = (*LoadArtifactManifest(out_)->Find("aludel-p2"))->encoder.sha256;
  job_.options.packing = LatentPacking::kVideo;
  const absl::Status libraries = CheckPacking(LatentPacking::kVideo);
  const absl::Status status = RunRepackJob(job_, device_.get());
  if (!libraries.ok()) {
    EXPECT_EQ(status, libraries);
    GTEST_SKIP() << libraries;
  }
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Logits(out_, &video), want);
  EXPECT_NE(video, deflated);
  EXPECT_NE((*LoadArtifactManifest(out_)->Find("aludel-p2"))->encoder.sha256, encoder);
  EXPECT_THAT(ListFormats(out_).value(), ::testing::Not(::testing::Contains("aludel-p2")));
  EXPECT_THAT(ListFormats(out_).value(), ::testing::Contains("aludel-p0"));
  EXPECT_THAT(ListVideoFormats(out_).value(), ::testing::ElementsAre("aludel-p2"));
  job_.options.packing = LatentPacking::kRans;
  EXPECT_THAT(RunRepackJob(job_, device_.get()).ToString(), HasSubstr("has packing video"));
}

TEST_F(RepackJobTest, DecodersThatConsumersShareStayOneFile) {
  ArtifactManifest shared = LoadArtifactManifest(out_).value();
  for (ArtifactFormat& format : shared.formats) {
    ArtifactDecoder second = format.decoders[0];
    second.consumer = "second";
    second.consumer_hash = std::string(32, '2');
    format.decoders.push_back(second);
  }
  ArtifactWriter writer = ArtifactWriter::Begin(out_).value();
  ArtifactManifest kept;
  kept.producer = shared.producer;
  kept.producer_hash = shared.producer_hash;
  ASSERT_TRUE(KeepFormats(shared, {}, /*replace_controls=*/false, &writer, &kept).ok());
  ASSERT_TRUE(writer.Publish(kept).ok());

  const absl::Status status = RunRepackJob(job_, device_.get());
  ASSERT_TRUE(status.ok()) << status;
  const ArtifactManifest manifest = LoadArtifactManifest(out_).value();
  const std::vector<ArtifactDecoder>& decoders = (*manifest.Find("aludel-p2"))->decoders;
  ASSERT_EQ(decoders.back().consumer, "second");
  EXPECT_EQ(SharedWith(decoders, decoders.back()), &decoders[0]);
  EXPECT_EQ(decoders.back().file.sha256, decoders[0].file.sha256);
  size_t bytes = 0;
  Logits(out_, &bytes);  // opens it
}

// Their encoders are one file, whose hash is all that tells frames apart.
TEST_F(RepackJobTest, RefusesDeflateAndFixed) {
  const std::string encoder = (*LoadArtifactManifest(out_)->Find("aludel-p2"))->encoder.sha256;
  for (const LatentPacking packing : {LatentPacking::kDeflate, LatentPacking::kFixed}) {
    job_.options.packing = packing;
    const absl::Status refused = RunRepackJob(job_, device_.get());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(refused.ToString(), HasSubstr("--repack gives rans, embedded or video"));
    const ArtifactManifest manifest = LoadArtifactManifest(out_).value();
    EXPECT_EQ((*manifest.Find("aludel-p2"))->aludel.packing, LatentPacking::kDeflate);
    EXPECT_EQ((*manifest.Find("aludel-p2"))->encoder.sha256, encoder);
  }
}

TEST_F(RepackJobTest, NamesWhatIsMissing) {
  job_.format = "aludel-p9";
  EXPECT_THAT(RunRepackJob(job_, device_.get()).ToString(), HasSubstr("holds no aludel format aludel-p9"));
  job_.base.out = out_ + "-none";
  EXPECT_THAT(RunRepackJob(job_, device_.get()).ToString(), HasSubstr("holds no artifact to repack"));
}

}  // namespace
}  // namespace aludel
