#include "runtime/codec/artifact/artifact.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/artifact/format_name.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/open_codec.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void Spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A copy of the demo's artifact that a test may spoil.
class Artifact : public ::testing::Test {
 protected:
  Artifact() {
    std::string pattern = ::testing::TempDir() + "/artifactXXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    std::filesystem::copy(
        "deploy/demo/codec", directory_,
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }
  ~Artifact() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string manifest_text() const { return Slurp(Path(kArtifactManifest)); }

  // The complaint about a manifest in which `from` has become `to`.
  std::string Complaint(const std::string& from, const std::string& to) {
    const std::string text = manifest_text();
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::string corrupted = text;
    corrupted.replace(at, from.size(), to);
    return Message(ParseArtifactManifest(corrupted, "dir").status());
  }

  std::string directory_;
};

TEST_F(Artifact, ListsItsFormatsAndControls) {
  EXPECT_THAT(*ListFormats(directory_),
              ::testing::ElementsAre("raw", "aludel-p2", "aludel-p0", "scd", "reuse-only"));
  EXPECT_THAT(*ListControls(directory_), ::testing::Contains("control-p0"));
}

TEST_F(Artifact, AFormatOfThatNameGoesBeforeACut) {
  ArtifactManifest manifest = LoadArtifactManifest(directory_).value();
  const auto find = [&](const char* name) { return FindNamed(manifest, name); };
  EXPECT_EQ(find("aludel-p2")->planes, 0);
  EXPECT_EQ(find("aludel-p2@3")->format->name, "aludel-p2");
  EXPECT_EQ(find("aludel-p2@3")->planes, 3);
  EXPECT_EQ(find("aludel-p2@3")->base_planes, 0);
  EXPECT_EQ(find("aludel-p2@3+")->format->name, "aludel-p2");
  EXPECT_EQ(find("aludel-p2@3+")->planes, 0);
  EXPECT_EQ(find("aludel-p2@3+")->base_planes, 3);
  for (const char* name :
       {"aludel-p2@+", "aludel-p2@0+", "aludel-p2@3++", "aludel-p2@3+3", "aludel-p2@-1+"}) {
    EXPECT_THAT(Message(find(name).status()), HasSubstr("does not end with a number of planes")) << name;
  }
  EXPECT_THAT(Message(find("aludel-p2@fit").status()), HasSubstr("does not end with a number of planes"));
  EXPECT_THAT(Message(find("p9@3").status()), HasSubstr("has no format \"p9\", only: aludel-p2"));
  // As an older build may have named them.
  for (const char* name : {"aludel-p2@fit", "aludel-p2@3", "one@two@3"}) {
    manifest.formats[1].name = name;
    EXPECT_EQ(find(name)->format, &manifest.formats[1]) << name;
    EXPECT_EQ(find(name)->planes, 0) << name;
  }
  EXPECT_EQ(find("one@two@3@1")->format, &manifest.formats[1]);
  EXPECT_EQ(find("one@two@3@1")->planes, 1);
}

TEST_F(Artifact, ServesAFormatOfAnOlderBuildWithAnAtSignInItsName) {
  std::string text = manifest_text();
  const std::string name = "\"name\": \"reuse-only\"";
  text.replace(text.find(name), name.size(), "\"name\": \"p2@fit\"");
  Spill(Path(kArtifactManifest), text);
  TestModel base("deploy/demo/base", {}, DType::kBf16, 16);
  const auto encoders = OpenEncoders("p2@fit", directory_, base.model());
  ASSERT_TRUE(encoders.ok()) << encoders.status();
  EXPECT_EQ((*encoders)->spec().name, "p2@fit");
}

TEST_F(Artifact, EncoderSurvivesARewriteByteForByte) {
  const auto manifest = LoadArtifactManifest(directory_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const ArtifactFormat& format = **manifest->Find("scd");
  const auto encoder = LoadScdEncoder(*manifest, format, 128, 256);
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  const auto decoder = LoadScdDecoder(*manifest, format, format.decoders[0], 128, 256);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  auto writer = ArtifactWriter::Begin(directory_ + "-copy", MatrixStorage::kInt8);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->AddEncoder("scd", *encoder)->sha256, format.encoder.sha256);
  EXPECT_EQ(writer->AddDecoder("scd", "chat", *decoder)->sha256, format.decoders[0].file.sha256);
}

TEST_F(Artifact, SideDirectionsAreWholePiecesOfAsManyAsTheModelIsWide) {
  constexpr int64_t kKvDim = 128, kHidden = 256;
  const ArtifactManifest manifest = LoadArtifactManifest(directory_).value();
  const ArtifactFormat& format = **manifest.Find("aludel-p2");
  AludelDecoderWeights weights =
      LoadAludelDecoder(manifest, format, format.decoders[0], kKvDim, kHidden).value();
  ArtifactDecoder written;
  const auto load = [&](int64_t rows) {
    weights.side = HostMatrix::Zeros(rows, kHidden);
    for (size_t g = 0; g < weights.groups.size(); ++g) {
      for (HostMatrix* first : {&weights.groups[g].hidden, &weights.groups[g].linear}) {
        *first = HostMatrix::Zeros(first->rows, rows + format.aludel.groups[g].rank);
      }
    }
    written.file =
        WriteWeights(directory_, "side.safetensors", ListTensors(weights, MatrixStorage::kF32)).value();
    return LoadAludelDecoder(manifest, format, written, kKvDim, kHidden);
  };
  for (const int64_t rows : {kHidden, int64_t{8}}) {
    const auto found = load(rows);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->side.rows, rows);
  }
  for (const int64_t rows : {kHidden + 8, int64_t{12}}) {
    EXPECT_THAT(Message(load(rows).status()),
                HasSubstr(absl::StrCat("tensor side has ", rows, " rows, want a multiple of 8 up to 256")));
  }
}

TEST_F(Artifact, WriterRefusesTwoFilesOfOneName) {
  const auto manifest = LoadArtifactManifest(directory_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const ArtifactFormat& format = **manifest->Find("scd");
  const auto encoder = LoadScdEncoder(*manifest, format, 128, 256);
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  for (const bool keep_first : {true, false}) {
    auto writer = ArtifactWriter::Begin(directory_ + "-copy");
    ASSERT_TRUE(writer.ok());
    const auto keep = [&] { return writer->Keep(*manifest, format.encoder); };
    const auto add = [&] { return writer->AddEncoder("scd", *encoder).status(); };
    ASSERT_TRUE((keep_first ? keep() : add()).ok());
    const absl::Status other = keep_first ? add() : keep();
    EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists) << other;
    EXPECT_THAT(Message(other), ::testing::HasSubstr("two of its files would be scd.encoder.safetensors"));
    // A file that several entries name is one.
    if (keep_first) {
      EXPECT_TRUE(keep().ok());
    }
  }
}

TEST_F(Artifact, UnpublishedWriterLeavesNothing) {
  const std::string destination = directory_ + "-new";
  { ASSERT_TRUE(ArtifactWriter::Begin(destination).ok()); }
  EXPECT_FALSE(std::filesystem::exists(destination));
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr(destination)));
  }
}

TEST_F(Artifact, PublishRefusesToReplaceWhatIsNoArtifact) {
  std::filesystem::remove(Path(kArtifactManifest));
  auto writer = ArtifactWriter::Begin(directory_);
  ASSERT_TRUE(writer.ok());
  EXPECT_THAT(Message(writer->Publish({})), HasSubstr("is no artifact: it is left as it is"));
  EXPECT_TRUE(std::filesystem::exists(Path("scd.encoder.safetensors")));
}

TEST_F(Artifact, ManifestFieldsAreNamedWhenTheyAreWrong) {
  EXPECT_THAT(Complaint("\"artifact_version\": 3", "\"artifact_version\": 2"),
              HasSubstr("dir/artifact.json: artifact_version is 2, this build reads 3"));
  EXPECT_THAT(Complaint("\"producer\"", "\"producers\""), HasSubstr("producer is missing, want an object"));
  EXPECT_THAT(Complaint("\"mode\": \"patch\"", "\"mode\": \"magic\""),
              HasSubstr("formats[2].layers[0]: mode is \"magic\""));
  EXPECT_THAT(Complaint("\"rank_h\": 128", "\"rank_h\": -1"), HasSubstr("rank_h is -1"));
  EXPECT_THAT(Complaint("\"rank_k\": 64", "\"rank_k\": \"64\""), HasSubstr("rank_k is"));
  EXPECT_THAT(Complaint("\"kind\": \"scd\"", "\"kind\": \"zip\""), HasSubstr("kind is \"zip\""));
  EXPECT_THAT(Complaint("scd.encoder.safetensors", "../../etc/passwd"),
              HasSubstr("formats[2].encoder: file is \"../../etc/passwd\""));
  EXPECT_THAT(Complaint("\"packing\": \"rans\"", "\"packing\": \"zip\""),
              HasSubstr("formats[0]: packing is \"zip\", want \"rans\", \"embedded\", \"deflate\", \"video\" "
                        "or \"fixed\""));
  EXPECT_THAT(Complaint("\"end_share\": 0.", "\"end_share\": 3."),
              AllOf(HasSubstr("formats[0]: end_share is 3"), HasSubstr("want a share: 0 to 1")));
  EXPECT_THAT(Complaint("\"end_share\": 0.", "\"end_share\": -0."),
              HasSubstr("formats[0]: end_share is -0."));
  EXPECT_THAT(Complaint("\"end_share\": 0.", "\"code_digits\": [1, -1],\n\"end_share\": 0."),
              HasSubstr("formats[0]: code_digits has -1, want numbers of 0 to 16"));
  EXPECT_THAT(Complaint("\"end_share\": 0.", "\"code_digits\": [\"1\"],\n\"end_share\": 0."),
              HasSubstr("formats[0]: code_digits has \"1\", want numbers of 0 to 16"));
  EXPECT_THAT(Complaint("\"end_share\": 0.", "\"code_digits\": 1,\n\"end_share\": 0."),
              HasSubstr("formats[0]: code_digits is 1, want an array of numbers"));
  EXPECT_THAT(Complaint("\"end_share\": 0.", "\"code_digits\": [1, 1, 1],\n\"end_share\": 0."),
              HasSubstr("formats[0]: code_digits has 3 numbers, want one for each of 1 groups"));
  EXPECT_THAT(Complaint("\"first_layer\": 3", "\"first_layer\": 4"),
              HasSubstr("formats[0].groups[0]: first_layer is 4"));
  EXPECT_THAT(Complaint("\"recomputed_layers\": 2", "\"recomputed_layers\": -2"),
              HasSubstr("recomputed_layers is -2"));
  EXPECT_THAT(Complaint("\"name\": \"reuse-only\"", "\"name\": \"scd\""),
              HasSubstr("format \"scd\" is given twice"));
  EXPECT_THAT(Complaint("\"sha256\": \"", "\"sha256\": \"x"), HasSubstr("want 64 lower-case hex digits"));
}

TEST_F(Artifact, EveryTruncationOfTheManifestIsRefused) {
  const std::string text = manifest_text();
  for (size_t size = 0; size + 2 < text.size(); size += 7) {
    EXPECT_FALSE(ParseArtifactManifest(text.substr(0, size), "dir").ok()) << size;
  }
}

TEST_F(Artifact, CorruptedWeightFileNamesFileAndBothHashes) {
  std::string bytes = Slurp(Path("scd.encoder.safetensors"));
  bytes[bytes.size() / 2] ^= 1;
  Spill(Path("scd.encoder.safetensors"), bytes);
  TestModel base("deploy/demo/base", {}, DType::kBf16, 16);
  const auto codec = OpenEncoders("scd", directory_, base.model());
  EXPECT_EQ(codec.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(codec.status()),
              AllOf(HasSubstr("scd.encoder.safetensors: SHA-256 of its"), HasSubstr("artifact.json says")));
  // The consumer's half does not need that file.
  TestModel chat("deploy/demo/chat", {}, DType::kBf16, 16);
  EXPECT_TRUE(OpenDecoders("scd", directory_, chat.model()).ok());
}

TEST_F(Artifact, TruncatedOrMissingWeightFileIsNamed) {
  const std::string name = "scd.chat.decoder.safetensors";
  const std::string bytes = Slurp(Path(name));
  Spill(Path(name), bytes.substr(0, bytes.size() - 100));
  TestModel chat("deploy/demo/chat", {}, DType::kBf16, 16);
  EXPECT_THAT(Message(OpenDecoders("scd", directory_, chat.model()).status()), HasSubstr(name));
  std::filesystem::remove(Path(name));
  EXPECT_THAT(Message(OpenDecoders("scd", directory_, chat.model()).status()), HasSubstr(name));
}

TEST_F(Artifact, RankThatTheWeightsDoNotHaveIsNamed) {
  Spill(Path(kArtifactManifest),
        absl::StrReplaceAll(manifest_text(), {{"\"rank_v\": 64", "\"rank_v\": 63"}}));
  TestModel base("deploy/demo/base", {}, DType::kBf16, 16);
  EXPECT_THAT(Message(OpenEncoders("scd", directory_, base.model()).status()),
              AllOf(HasSubstr("tensor layers.1.v has shape [64, 128], want [63, 128]")));
}

TEST_F(Artifact, OtherModelsAreRefusedWithBothHashes) {
  const auto manifest = LoadArtifactManifest(directory_);
  TestModel chat("deploy/demo/chat", {}, DType::kBf16, 16);
  const auto as_producer = OpenEncoders("scd", directory_, chat.model());
  EXPECT_EQ(as_producer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(as_producer.status()), AllOf(HasSubstr(manifest->producer_hash),
                                                   HasSubstr(chat.model().hash()), HasSubstr(directory_)));
  TestModel base("deploy/demo/base", {}, DType::kBf16, 16);
  const auto as_consumer = OpenDecoders("scd", directory_, base.model());
  EXPECT_EQ(as_consumer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(as_consumer.status()), AllOf(HasSubstr(base.model().hash()), HasSubstr("\"chat\"")));
}

TEST_F(Artifact, UnknownFormatListsThoseThatThereAre) {
  TestModel chat("deploy/demo/chat", {}, DType::kBf16, 16);
  EXPECT_THAT(Message(OpenDecoders("papyrus", directory_, chat.model()).status()),
              AllOf(HasSubstr("no format \"papyrus\""), HasSubstr("scd, reuse-only")));
}

TEST_F(Artifact, ControlCannotBeShipped) {
  TestModel base("deploy/demo/base", {}, DType::kBf16, 16);
  EXPECT_THAT(Message(OpenEncoders("control-p0", directory_, base.model()).status()),
              HasSubstr("is a control"));
}

}  // namespace
}  // namespace aludel
