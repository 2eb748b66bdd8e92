#include "runtime/calibrate/share_job.h"

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/bench/make_codec.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/open_codec.h"
#include "runtime/model/weights/weight_stream.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kProducer[] = "deploy/demo/base";
constexpr char kBase[] = "deploy/demo/chat";

// Random codes of the demo's pair, whose loss is large: what matters is which side of the asked one it is on.
class ShareJobTest : public ::testing::Test {
 protected:
  ShareJobTest() {
    EXPECT_TRUE(
        MakeCodec({.producer = kProducer, .consumer = kBase, .out = Codec(), .recomputed_layers = 1}).ok());
    EXPECT_TRUE(MakeAdapter({.base = kBase, .out = files_.File("tune"), .rank = 2}).ok());
    std::ifstream from("deploy/demo/calibration.jsonl");
    std::ofstream to(files_.File("data.jsonl"));
    std::string line;
    for (int i = 0; i < 4 && std::getline(from, line); ++i) to << line << "\n";
    job_.base.producer = kProducer;
    job_.base.consumers = {Adapted()};
    job_.base.data = files_.File("data.jsonl");
    job_.base.out = Codec();
    job_.base.held_out = 0.5;
    job_.max_kl = 1000;
  }

  std::string Codec() const { return files_.File("codec"); }
  std::string Adapted() const { return std::string(kBase) + "+" + files_.File("tune"); }
  absl::Status Run() { return RunShareJob(job_, OpenDevice({.name = "cpu", .threads = 1}).value().get()); }
  ArtifactFormat Format() const { return LoadArtifactManifest(Codec()).value().formats.at(0); }

  const TemporaryDirectory files_;
  AludelJob job_;
};

TEST_F(ShareJobTest, WithinTheLossThatIsAskedTheDecoderOfTheBaseIsTheAdaptersToo) {
  const ArtifactFormat before = Format();
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE(Run().ok());
    const ArtifactFormat after = Format();
    ASSERT_THAT(after.decoders, SizeIs(2)) << "run " << run;
    const ArtifactDecoder& shared = after.decoders[1];
    EXPECT_EQ(shared.consumer_hash, HashModel(ModelPath::Parse(Adapted())).value());
    EXPECT_EQ(shared.file.file, before.decoders[0].file.file);
    EXPECT_EQ(shared.file.sha256, before.decoders[0].file.sha256);
    EXPECT_EQ(after.encoder.sha256, before.encoder.sha256);
    ASSERT_TRUE(shared.expected.has_value());
    EXPECT_GT(shared.expected->kl, 0.1) << "random codes";
    EXPECT_GT(shared.expected->bytes_per_token, 0);
    EXPECT_EQ(SharedWith(after.decoders, shared), &after.decoders[0]);
    EXPECT_EQ(SharedWith(after.decoders, after.decoders[0]), nullptr);
  }
  const auto device = OpenDevice({.name = "cpu", .threads = 1}).value();
  const auto merged = Transformer::Load(device.get(), ModelPath::Parse(Adapted()), {}).value();
  EXPECT_TRUE(OpenDecoders(Format().name, Codec(), *merged).ok());
}

TEST_F(ShareJobTest, BeyondItNothingChanges) {
  job_.max_kl = 1e-6;
  const absl::Status refused = Run();
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max-kl is 1e-06"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("95 % interval"));
  EXPECT_THAT(Format().decoders, SizeIs(1));
}

TEST_F(ShareJobTest, WantsAnAdapterAndADecoderOfItsBase) {
  job_.base.consumers = {kBase};
  EXPECT_THAT(std::string(Run().message()), HasSubstr("want BASE+ADAPTER"));
  const std::string other = files_.File("other");
  ASSERT_TRUE(MakeAdapter({.base = kProducer, .out = other, .rank = 2}).ok());
  job_.base.consumers = {std::string(kProducer) + "+" + other};
  EXPECT_THAT(std::string(Run().message()), HasSubstr("no decoder for this model"));
  job_.base.consumers = {Adapted()};
  job_.format = "aludel-p7";
  EXPECT_EQ(Run().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace aludel
