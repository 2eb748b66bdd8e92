#include "server/host/model_host.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/codec/open_codec.h"
#include "runtime/model/weights/weight_stream.h"
#include "server/host/arena_room.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/write_adapter.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kChat[] = "deploy/demo/chat/";

// Everything that is logged while it lives.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_;
};

ModelOptions Options(const std::string& directory) {
  ModelOptions options;
  options.directory = directory;
  options.device.threads = 1;
  options.engine.kv_blocks = 64;
  return options;
}

absl::StatusOr<std::unique_ptr<DecodeHost>> Load(const ModelOptions& options) {
  return DecodeHost::Load(options, {.artifact = "", .formats = {"raw"}});
}

TEST(ModelHost, SaysHowFastItLoaded) {
  Log log;
  ASSERT_TRUE(Load(Options(kChat)).ok());
  EXPECT_THAT(log.text(), ContainsRegex("loaded deploy/demo/chat/ .LlamaForCausalLM, fp8.: "
                                        "0\\.007 GB in [0-9]+\\.[0-9][0-9] s, [0-9]+\\.[0-9][0-9] GB/s"));
}

ModelOptions WithSteps(int64_t tokens) {
  ModelOptions options = Options(kChat);
  options.transformer.max_rows = options.engine.max_num_batched_tokens = tokens;
  return options;
}

TEST(ModelHost, TheCacheIsOfSoManyBytesAtMost) {
  constexpr uint64_t kBlock = 65536;  // 16 tokens of 8 layers, keys and values of 128 numbers as bf16
  ModelOptions options = Options(kChat);
  options.kv_bytes = 4 * kBlock - 1;
  EXPECT_EQ(Load(options).value()->engine().options().kv_blocks, 3);
  options.kv_bytes = kBlock - 1;
  EXPECT_THAT(std::string(Load(options).status().message()),
              HasSubstr("engine.kv_bytes: found 65535, want at least 65536: a block of 65536 bytes"));
}

TEST(ModelHost, AHandoffFromSmallerStepsThanItsOwnFits) {
  // A step of 2,048 tokens is a GPU's default, of 256 a CPU's.
  const auto large = Load(WithSteps(2048)).value(), small = Load(WithSteps(256)).value();
  const CodecSpec& codec = large->codecs()->codecs.front()->spec();
  for (const int64_t tokens : {100, 1000, 5000}) {
    EXPECT_EQ(large->HandoffBytesBound(codec, tokens), small->HandoffBytesBound(codec, tokens));
  }
}

TEST(ModelHost, StepsAreAsSmallAsACreditIs) {
  const auto host = Load(WithSteps(2048)).value();
  const CodecSpec& codec = host->codecs()->codecs.front()->spec();
  const auto bytes = [&](int64_t tokens) { return host->StepBytesBound(codec, tokens); };
  EXPECT_EQ(bytes(2048), host->StepBytesBound(codec));
  EXPECT_EQ(host->StepTokens(codec, bytes(2048)), 2048);
  EXPECT_EQ(host->StepTokens(codec, bytes(2048) - 1), 1024);
  // What a server with a CPU's steps gives credit for: three of them.
  EXPECT_EQ(host->StepTokens(codec, 3 * bytes(256)), 512);
  EXPECT_EQ(host->StepTokens(codec, bytes(64)), 64);
  EXPECT_EQ(host->StepTokens(codec, bytes(64) - 1), std::nullopt);
}

TEST(ModelHost, SaysWhichPromptsItsArenaIsTooSmallFor) {
  constexpr size_t kWindow = 4096;
  const auto host = Load(WithSteps(32)).value();
  const CodecSpec& codec = host->codecs()->codecs.front()->spec();
  const size_t needed = host->HandoffWindow(codec, host->engine().options().max_context, kWindow);
  EXPECT_EQ(needed, 4 * host->StepBytesBound(codec));
  EXPECT_EQ(ArenaShortage(*host, codec, "send_arena_bytes", needed, kWindow), "");
  EXPECT_THAT(
      ArenaShortage(*host, codec, "send_arena_bytes", needed - 1, kWindow),
      ContainsRegex(absl::StrCat("send_arena_bytes is ", needed - 1, ", and a prompt of [0-9]+ tokens needs ",
                                 needed, " in format raw with steps of 32 tokens")));
}

TEST(ModelHost, MissesATokenizerBeforeItLoadsWeights) {
  TemporaryDirectory directory;
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(absl::StrCat(kChat, file), directory.File(file));
  }
  directory.Write("tokenizer.model", "x");
  Log log;
  const auto host = Load(Options(directory.path()));
  EXPECT_THAT(std::string(host.status().message()),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("tokenizer.model")));
  EXPECT_THAT(log.text(), IsEmpty());
}

TEST(ModelHost, AnAdapterMakesAnotherModelOfItsBase) {
  const TemporaryDirectory weak, strong;
  WriteAdapter(weak, kChat, 0.01f);
  WriteAdapter(strong, kChat, 0.02f);
  std::set<std::string> hashes;
  for (const std::string& adapter : {std::string(), weak.path(), strong.path()}) {
    ModelOptions options = Options(kChat);
    options.adapter = adapter;
    Log log;
    const auto host = Load(options);
    ASSERT_TRUE(host.ok()) << host.status();
    // What peers, artifacts and the prefix cache know it by.
    hashes.insert((*host)->Identity().weights_hash());
    EXPECT_EQ((*host)->Identity().weights_hash(), HashModel({kChat, adapter}).value());
    EXPECT_THAT(log.text(), HasSubstr(adapter));
  }
  EXPECT_EQ(hashes.size(), 3);
}

TEST(ModelHost, OpensWhatIsPublishedBesideWhatItHas) {
  const TemporaryDirectory files;
  const std::string root = files.File("codec");
  ASSERT_TRUE(PublishVersion(root, "deploy/demo/codec").ok());
  const CodecOptions options{.artifact = root};
  auto host = PrefillHost::Load(Options("deploy/demo/base"), options);
  ASSERT_TRUE(host.ok()) << host.status();
  const auto first = (*host)->codecs();
  EXPECT_EQ(first->origin.version, "0001");
  EXPECT_EQ((*host)->OpenNext(options).value(), first) << "nothing was published";

  const std::string spoiled = files.File("spoiled");
  std::filesystem::copy("deploy/demo/codec", spoiled);
  const auto replace = [&spoiled](const std::string& from, const std::string& to) {
    std::ostringstream text;
    text << std::ifstream(spoiled + "/artifact.json").rdbuf();
    std::ofstream(spoiled + "/artifact.json") << absl::StrReplaceAll(text.str(), {{from, to}});
  };
  const auto complaint = [&] {
    EXPECT_TRUE(PublishVersion(root, spoiled).ok());
    return std::string((*host)->OpenNext(options).status().message());
  };
  replace("\"packing\": \"rans\"", "\"packing\": \"deflate\"");
  EXPECT_THAT(complaint(), HasSubstr("give the format another name"));
  replace("\"packing\": \"deflate\"", "\"packing\": \"rans\"");
  replace("69c79a3651ba1da27607ccf541728a95", "69c79a3651ba1da27607ccf541728a96");
  EXPECT_THAT(complaint(), HasSubstr("was calibrated for producer"));
  replace("69c79a3651ba1da27607ccf541728a96", "69c79a3651ba1da27607ccf541728a95");
  EXPECT_EQ(complaint(), "");
  const auto fourth = (*host)->OpenNext(options).value();
  EXPECT_EQ(fourth->origin.version, "0004");
  EXPECT_EQ(fourth->codecs.size(), first->codecs.size());
  EXPECT_EQ((*host)->codecs(), first) << "until it is switched to";
  std::filesystem::resize_file(root + "/versions/0004/scd.chat.decoder.safetensors", 100);
  EXPECT_THAT(std::string((*host)->OpenNext(options).status().message()), HasSubstr("the manifest says"))
      << "of the other side, too";
}

}  // namespace
}  // namespace aludel
