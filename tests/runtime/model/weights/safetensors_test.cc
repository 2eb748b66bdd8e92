#include "runtime/model/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint8_t> Bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + 3);
  return bytes;
}

// The text of the Status that a header over `data_bytes` bytes of data gives; empty where it is accepted.
std::string Parse(absl::string_view header, size_t data_bytes) {
  const std::vector<uint8_t> data(data_bytes + 1);
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  const absl::Status status =
      ParseSafetensorsHeader(header, data.data(), data_bytes, "x.safetensors", &entries, &metadata);
  return std::string(status.message());
}

// A well-formed file: 8 bytes of header length, header, data.
std::string FileOf(const std::string& header, size_t data_bytes) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header + std::string(data_bytes, 'd');
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a.safetensors");
  const std::vector<uint8_t> first = Bytes(24), second = Bytes(6);
  const std::vector<SafetensorsTensor> tensors = {
      {"w", "F32", {2, 3}, first},
      {"b", "BF16", {3}, second},
      {"scalar", "U8", {}, absl::MakeConstSpan(first).subspan(0, 1)},
      {"empty", "F16", {0, 4}, {}}};
  ASSERT_TRUE(WriteSafetensors(path, tensors, {{"format", "pt"}}).ok());

  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  ASSERT_EQ((*file)->entries().size(), 4);
  const SafetensorsEntry* w = *(*file)->Find("w");
  EXPECT_EQ(w->dtype, "F32");
  EXPECT_THAT(w->shape, ElementsAre(2, 3));
  EXPECT_EQ(w->elements(), 6);
  EXPECT_EQ(w->data, absl::MakeConstSpan(first));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(w->data.data()) % 64, 0) << "data starts on a cache line";
  EXPECT_EQ((*(*file)->Find("b"))->data, absl::MakeConstSpan(second));
  EXPECT_EQ((*(*file)->Find("scalar"))->elements(), 1);
  EXPECT_TRUE((*(*file)->Find("empty"))->data.empty());
  EXPECT_THAT(std::string((*file)->Find("absent").status().message()),
              AllOf(HasSubstr("a.safetensors"), HasSubstr("absent")));
  // The rename left nothing else behind.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(Safetensors, WriterRefusesWhatTheReaderWouldRefuse) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a.safetensors");
  const std::vector<uint8_t> bytes = Bytes(8);
  const std::vector<SafetensorsTensor> wrong_size = {{"w", "F32", {3}, bytes}};
  EXPECT_THAT(std::string(WriteSafetensors(path, wrong_size, {}).message()),
              AllOf(HasSubstr("tensor w"), HasSubstr("8 bytes, want 12")));
  const std::vector<SafetensorsTensor> twice = {{"w", "F32", {2}, bytes}, {"w", "F32", {2}, bytes}};
  EXPECT_THAT(std::string(WriteSafetensors(path, twice, {}).message()), HasSubstr("given twice"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Safetensors, AcceptsTensorsInAnyOrderOfNames) {
  EXPECT_EQ(Parse(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                      "a":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}})",
                  12),
            "");
}

TEST(Safetensors, NamesTensorFoundAndExpectedOfABadHeader) {
  EXPECT_THAT(Parse("[]", 0), AllOf(HasSubstr("x.safetensors"), HasSubstr("want an object of tensors")));
  EXPECT_THAT(Parse(R"({"w":)", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(Parse("{\"w\xff\":1}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(Parse(R"({"w":3})", 0), AllOf(HasSubstr("tensor w"), HasSubstr("dtype")));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}})", 4),
              AllOf(HasSubstr("tensor w"), HasSubstr("\"Q4\""), HasSubstr("BF16")));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              AllOf(HasSubstr("tensor w"), HasSubstr("-1")));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4), HasSubstr("1.5"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("4 bytes, want 8"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), HasSubstr("[4, 0]"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), HasSubstr("data_offsets"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4),
              AllOf(HasSubstr("[0, 8]"), HasSubstr("4 bytes")));
  EXPECT_THAT(Parse(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__.a"));
}

TEST(Safetensors, RefusesOverlapsHolesAndTrailingBytes) {
  const std::string overlap = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                                  "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  EXPECT_THAT(Parse(overlap, 8), AllOf(HasSubstr("tensor b"), HasSubstr("overlap")));
  const std::string hole = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  EXPECT_THAT(Parse(hole, 8), AllOf(HasSubstr("tensor a"), HasSubstr("starts at byte 4, want 0")));
  const std::string trailing = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_THAT(Parse(trailing, 5), AllOf(HasSubstr("end at byte 4"), HasSubstr("holds 5")));
}

TEST(Safetensors, RefusesArithmeticThatOverflows) {
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
              HasSubstr("more than 2^64"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(Parse(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]}})", 4),
              HasSubstr("18446744073709551612"));
}

TEST(Safetensors, RefusesATensorGivenTwiceAndDeepNesting) {
  const std::string tensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(Parse(absl::StrCat("{\"a\":", tensor, ",\"a\":", tensor, "}"), 4), HasSubstr("appears twice"));
  EXPECT_THAT(Parse(absl::StrCat("{\"a\":", std::string(100000, '['), std::string(100000, ']'), "}"), 4),
              HasSubstr("nests deeper"));
}

TEST(Safetensors, EveryTruncationOfAFileIsAnError) {
  TemporaryDirectory directory;
  const std::string whole = FileOf(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    directory.Write("cut.safetensors", whole.substr(0, bytes));
    auto file = SafetensorsFile::Open(directory.File("cut.safetensors"));
    ASSERT_FALSE(file.ok()) << bytes;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("cut.safetensors"));
  }
  directory.Write("cut.safetensors", whole);
  EXPECT_TRUE(SafetensorsFile::Open(directory.File("cut.safetensors")).ok());
}

TEST(Safetensors, RefusesAHeaderLengthBeyondTheFile) {
  TemporaryDirectory directory;
  directory.Write("long.safetensors", std::string(8, '\xff') + "{}");
  auto file = SafetensorsFile::Open(directory.File("long.safetensors"));
  EXPECT_THAT(std::string(file.status().message()),
              AllOf(HasSubstr("18446744073709551615"), HasSubstr("want at most 2")));
  EXPECT_EQ(SafetensorsFile::Open(directory.File("absent.safetensors")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(SafetensorsFile::Open(directory.path()).ok());
}

class ModelFilesTest : public ::testing::Test {
 protected:
  void WriteShard(const std::string& file, const std::string& tensor) {
    const std::vector<uint8_t> bytes = Bytes(4);
    const std::vector<SafetensorsTensor> tensors = {{tensor, "F32", {1}, bytes}};
    ASSERT_TRUE(WriteSafetensors(directory_.File(file), tensors, {}).ok());
  }
  void WriteIndex(const std::string& weight_map) {
    directory_.Write("model.safetensors.index.json", absl::StrCat("{\"weight_map\":", weight_map, "}"));
  }
  std::string Error() { return std::string(ModelFiles::Open(directory_.path()).status().message()); }

  TemporaryDirectory directory_;
};

TEST_F(ModelFilesTest, OpensASingleFile) {
  WriteShard("model.safetensors", "w");
  auto files = ModelFiles::Open(directory_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE(files->Contains("w"));
  EXPECT_EQ((*files->Find("w"))->elements(), 1);
  EXPECT_EQ(files->Find("v").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelFilesTest, OpensTheShardsThatTheIndexNames) {
  WriteShard("a.safetensors", "w");
  WriteShard("b.safetensors", "v");
  WriteIndex(R"({"w":"a.safetensors","v":"b.safetensors"})");
  auto files = ModelFiles::Open(directory_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->entries().size(), 2);
}

TEST_F(ModelFilesTest, NamesWhatIsThereInPlaceOfSafetensors) {
  const std::pair<const char*, const char*> others[] = {
      {"model.Q4_K_M.gguf", "llama.cpp's format"},
      {"pytorch_model-00001-of-00002.bin", "PyTorch's pickle format"},
      {"pytorch_model.bin.index.json", "PyTorch's pickle format"},
      {"consolidated.00.pth", "its publisher's own layout"},
      {"model-00001-of-00002.safetensors", "model.safetensors.index.json, which lists them, is missing"},
      {"gptq_model-4bit-128g.safetensors", "not the name"},
      {"adapter_model.safetensors", "name it beside its base model"}};
  for (const auto& [file, reason] : others) {
    directory_.Write(file, "x");
    EXPECT_THAT(Error(),
                AllOf(HasSubstr("found neither model.safetensors"), HasSubstr(file), HasSubstr(reason)));
    std::filesystem::remove(directory_.File(file));
  }
}

TEST_F(ModelFilesTest, NamesWhatIsWrongWithAnIndex) {
  EXPECT_THAT(Error(), HasSubstr("found neither model.safetensors"));
  directory_.Write("pytorch_model.bin", "x");
  EXPECT_THAT(Error(), HasSubstr("pytorch_model.bin is PyTorch's pickle format"));
  WriteIndex("{}");
  EXPECT_THAT(Error(), HasSubstr("weight_map"));
  WriteIndex(R"({"w":"../a.safetensors"})");
  EXPECT_THAT(Error(), AllOf(HasSubstr("tensor w"), HasSubstr("without '/'")));
  WriteIndex(R"({"w":"a.safetensors"})");
  EXPECT_THAT(Error(), HasSubstr("a.safetensors: No such file"));
  WriteShard("a.safetensors", "u");
  EXPECT_THAT(Error(), AllOf(HasSubstr("tensor w should be in a.safetensors")));
  WriteShard("a.safetensors", "w");
  WriteShard("b.safetensors", "w");
  WriteIndex(R"({"w":"a.safetensors","v":"b.safetensors"})");
  EXPECT_THAT(Error(), AllOf(HasSubstr("tensor w"), HasSubstr("also in another file")));
}

// A parser that walks the whole header each time that a tensor ends takes 64 times as long for 8 times
// as many.
TEST(Safetensors, ReadsAHeaderInTimeThatGrowsWithItsTensors) {
  const auto seconds = [](int tensors) {
    std::string header = "{";
    for (int i = 0; i < tensors; ++i) {
      absl::StrAppend(&header, i == 0 ? "" : ",", "\"t", i,
                      R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
    }
    const double start = ThreadCpuSeconds();
    EXPECT_EQ(Parse(header + "}", 0), "");
    return ThreadCpuSeconds() - start;
  };
  const double few = seconds(25000);
  EXPECT_LT(seconds(200000), 24 * few);
}

}  // namespace
}  // namespace aludel
