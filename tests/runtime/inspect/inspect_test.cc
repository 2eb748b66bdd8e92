// Runs the real aludel-inspect over the demo pair, its artifact and the tiny models.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/bench/make_model.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/store/segment_scan.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string text;
};

Outcome Inspect(const std::string& arguments) {
  const std::string command = absl::StrCat(ALUDEL_BIN_DIR, "/aludel-inspect ", arguments, " 2>&1");
  FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), got);
  }
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

constexpr char kBase[] = "deploy/demo/base";
constexpr char kChat[] = "deploy/demo/chat";
constexpr char kCodec[] = "deploy/demo/codec";
constexpr char kTiny[] = "tests/runtime/model/golden/tiny/";

TEST(Inspect, DescribesAModelAndPlansItsMemory) {
  const Outcome outcome = Inspect(absl::StrCat(kBase, " --json --concurrency 4 --context 100"));
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const json report = json::parse(outcome.text);
  EXPECT_EQ(report["model"]["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(report["model"]["parameters"], 6557952);
  EXPECT_EQ(report["weights"]["types"][0]["dtype"], "BF16");
  EXPECT_EQ(report["weights"]["types"][1]["dtype"], "F8_E4M3");
  EXPECT_EQ(report["kv_cache"]["bytes_per_token"], 2 * 8 * 4 * 32 * 2);
  EXPECT_EQ(report["tokenizer"]["ids"], 2048);
  const json& plan = report["memory_plan"];
  EXPECT_EQ(plan["kv_blocks"], 4 * 7);
  EXPECT_EQ(plan["kv_cache_bytes"], 4 * 7 * 16 * 4096);
  EXPECT_EQ(plan["total_bytes"].get<int64_t>(), plan["weights_bytes"].get<int64_t>() +
                                                    plan["workspace_bytes"].get<int64_t>() +
                                                    plan["kv_cache_bytes"].get<int64_t>());
  EXPECT_THAT(Inspect(kBase).text, AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("6.56 M")));
  const json fp8 =
      json::parse(Inspect(absl::StrCat(kBase, " --json --concurrency 4 --context 100 --kv-dtype fp8")).text);
  EXPECT_EQ(fp8["kv_cache"]["dtype"], "fp8");
  EXPECT_EQ(fp8["kv_cache"]["bytes_per_token"], 2 * 8 * 4 * 32);
  EXPECT_EQ(fp8["memory_plan"]["kv_cache_bytes"], 4 * 7 * 16 * 2048);
  const Outcome wrong = Inspect(absl::StrCat(kBase, " --kv-dtype fp16"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("--kv-dtype is \"fp16\", want bf16, f32 or fp8"));
}

TEST(Inspect, SaysWhatKeepsAModelFromLoading) {
  // A tiny model has no tokenizer; one without its weights cannot even be described.
  const Outcome outcome = Inspect(absl::StrCat(kTiny, "awq_gemm"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("awq"), HasSubstr("problems"), HasSubstr("tokenizer.json")));
  TemporaryDirectory empty;
  EXPECT_EQ(Inspect(empty.path()).code, 2);
  EXPECT_THAT(Inspect(empty.path()).text, HasSubstr("config.json"));
}

TEST(Inspect, SaysWhatKeepsAGatewayFromStarting) {
  const TemporaryDirectory copy;
  for (const auto& file : std::filesystem::directory_iterator("deploy/demo/base")) {
    std::filesystem::copy_file(file.path(), copy.File(file.path().filename().string()));
  }
  EXPECT_EQ(Inspect(copy.path()).code, 0);
  copy.Write("chat_template.jinja", "{% if %}");
  copy.Write("generation_config.json", R"({"top_p": 2})");
  const Outcome outcome = Inspect(copy.path());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("want an expression"), HasSubstr("top_p is 2")));
}

void CopyTokenizer(const std::string& from, const TemporaryDirectory& to) {
  for (const char* file : {"config.json", "tokenizer.json"}) {
    std::filesystem::copy_file(absl::StrCat(from, "/", file), to.File(file));
  }
}

TEST(Inspect, AcceptsTheDemoPairWithItsArtifact) {
  const Outcome pair = Inspect(absl::StrCat(kBase, " ", kChat, " --codec ", kCodec, " --json"));
  ASSERT_EQ(pair.code, 0) << pair.text;
  const json report = json::parse(pair.text);
  EXPECT_EQ(report["fits"], true);
  EXPECT_THAT(report["formats_that_fit"].dump(), HasSubstr("scd"));
}

TEST(Inspect, NamesEveryReasonThatKeepsTwoModelsApart) {
  TemporaryDirectory other;
  const auto made =
      MakeModel({.shape = "tiny", .out = other.path(), .tokenizer = "tests/runtime/text/reference/gpt2"},
                [](int64_t, int64_t) { return true; });
  ASSERT_FALSE(made.ok());  // that directory holds no tokenizer_config.json
  ASSERT_TRUE(MakeModel({.shape = "tiny", .out = other.path(), .tokenizer = kBase}, [](int64_t, int64_t) {
                return true;
              }).ok());
  const Outcome shapes = Inspect(absl::StrCat(other.path(), " ", kChat));
  EXPECT_EQ(shapes.code, 1);
  EXPECT_THAT(shapes.text, AllOf(HasSubstr("layers is 2, want 8"), HasSubstr("kv_heads is 2, want 4"),
                                 HasSubstr("head_dim is 16, want 32")));
  EXPECT_THAT(shapes.text, ::testing::Not(HasSubstr("vocabulary fingerprint")));

  std::string tokenizer = other.Read("tokenizer.json");
  const std::string token = "<|assistant|>";
  for (size_t at = tokenizer.find(token); at != std::string::npos; at = tokenizer.find(token)) {
    tokenizer.replace(at, token.size(), "<|somebody|>");
  }
  other.Write("tokenizer.json", tokenizer);
  const Outcome words = Inspect(absl::StrCat(other.path(), " ", kChat));
  EXPECT_THAT(words.text, AllOf(HasSubstr("vocabulary fingerprint"),
                                HasSubstr("\"<|assistant|>\" is missing, want id 4")));
}

TEST(Inspect, ExplainsVocabulariesWhoseTokensAgree) {
  TemporaryDirectory other;
  CopyTokenizer(kChat, other);
  json tokenizer = json::parse(other.Read("tokenizer.json"));
  std::swap(tokenizer["model"]["merges"][7], tokenizer["model"]["merges"][9]);
  other.Write("tokenizer.json", tokenizer.dump());
  EXPECT_THAT(Inspect(absl::StrCat(other.path(), " ", kChat)).text,
              HasSubstr("the tokens agree, but merge 7 is "));
}

TEST(Inspect, NotesAddedTokensThatDiffer) {
  TemporaryDirectory producer, consumer;
  CopyTokenizer(kChat, producer);
  CopyTokenizer(kChat, consumer);
  const json tokenizer = json::parse(producer.Read("tokenizer.json"));
  const auto with = [&](const char* reserved, bool lstrip) {
    json changed = tokenizer;
    changed["added_tokens"].push_back({{"id", 2048}, {"content", reserved}, {"lstrip", lstrip}});
    return changed.dump();
  };
  producer.Write("tokenizer.json", with("<|reserved|>", false));
  consumer.Write("tokenizer.json", with("<|tool|>", false));
  const auto inspect = [&] { return Inspect(absl::StrCat(producer.path(), " ", consumer.path())); };
  const Outcome renamed = inspect();
  EXPECT_EQ(renamed.code, 0) << renamed.text;
  EXPECT_THAT(renamed.text,
              HasSubstr("added tokens differ: 1, the first is id 2048: \"<|reserved|>\" in the producer, "
                        "\"<|tool|>\" in the consumer"));
  producer.Write("tokenizer.json", with("<|tool|>", true));
  EXPECT_THAT(inspect().text, HasSubstr("first is id 2048, whose flags differ: \"<|tool|>\""));
  producer.Write("tokenizer.json", tokenizer.dump());
  EXPECT_THAT(inspect().text, HasSubstr("first is id 2048: no added token in the producer"));
}

TEST(Inspect, NotesWindowsThatDiffer) {
  TemporaryDirectory windowed, full;
  for (TemporaryDirectory* directory : {&windowed, &full}) {
    std::filesystem::copy_file(absl::StrCat(kChat, "/tokenizer.json"), directory->File("tokenizer.json"));
    json config = json::parse(std::ifstream(absl::StrCat(kTiny, "mistral_sliding/config.json")));
    if (directory == &full) config["sliding_window"] = nullptr;
    directory->Write("config.json", config.dump());
  }
  const Outcome outcome = Inspect(absl::StrCat(windowed.path(), " ", full.path()));
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text,
              HasSubstr("the sliding window is 7 tokens in the producer and none in the consumer: "
                        "calibrate with prompts of more than 7 tokens"));
  EXPECT_THAT(Inspect(absl::StrCat(full.path(), " ", full.path())).text, ::testing::Not(HasSubstr("window")));
}

TEST(Inspect, NotesRopesThatDiffer) {
  TemporaryDirectory producer;
  CopyTokenizer(kBase, producer);
  json config = json::parse(producer.Read("config.json"));
  config["rope_theta"] = 10000.0;
  producer.Write("config.json", config.dump());
  const Outcome outcome = Inspect(absl::StrCat(producer.path(), " ", kChat));
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text,
              HasSubstr("the rope is theta 10000 in the producer and theta 500000 in the consumer"));
  EXPECT_THAT(Inspect(absl::StrCat(kBase, " ", kChat)).text, ::testing::Not(HasSubstr("the rope is")));
}

TEST(Inspect, AnArtifactOfOtherModelsIsNamed) {
  const Outcome outcome = Inspect(absl::StrCat(kChat, " ", kBase, " --codec ", kCodec));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("was calibrated for producer \"base\""),
                                  HasSubstr("no decoder for this model")));
}

TEST(Inspect, ShowsAnArtifactLayerByLayer) {
  const Outcome outcome = Inspect(absl::StrCat(kCodec, " --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const json report = json::parse(outcome.text);
  EXPECT_EQ(report["artifact"]["producer"], "base");
  ASSERT_FALSE(report["formats"].empty());
  for (const json& format : report["formats"]) {
    if (format["kind"] != "scd") continue;
    int64_t bytes = 0;
    for (const json& layer : format["layers"]) bytes += layer["bytes_per_token"].get<int64_t>();
    EXPECT_EQ(format["bytes_per_token"], bytes) << format["name"];
  }
  EXPECT_EQ(Inspect(absl::StrCat("--codec ", kCodec)).text, Inspect(kCodec).text);
}

// As aludel-calibrate --share leaves it.
TEST(Inspect, SaysWhoseDecoderAnAdapterShares) {
  const ArtifactManifest old = LoadArtifactManifest(kCodec).value();
  const TemporaryDirectory files;
  ArtifactManifest manifest;
  manifest.producer = old.producer;
  manifest.producer_hash = old.producer_hash;
  ArtifactWriter writer = ArtifactWriter::Begin(files.File("codec")).value();
  ASSERT_TRUE(KeepFormats(old, {}, /*replace_controls=*/false, &writer, &manifest).ok());
  std::vector<ArtifactDecoder>& decoders = manifest.formats[0].decoders;
  decoders.push_back({"tune", std::string(32, 'a'), decoders[0].file, ExpectedLoss{0.5, 60}});
  ASSERT_TRUE(writer.Publish(manifest).ok());
  const Outcome outcome = Inspect(absl::StrCat(files.File("codec"), " --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const json consumers = json::parse(outcome.text)["formats"][0]["consumers"];
  EXPECT_EQ(consumers.back()["decoder_of"], decoders[0].consumer);
  EXPECT_FALSE(consumers.front().contains("decoder_of"));
}

TEST(Inspect, DescribesAnAdapterAloneAndOverItsBase) {
  constexpr char kAdapter[] = "tests/runtime/model/golden/adapters/llama_list";
  const Outcome alone = Inspect(absl::StrCat(kAdapter, " --json"));
  ASSERT_EQ(alone.code, 0) << alone.text;
  const json report = json::parse(alone.text);
  EXPECT_EQ(report["adapter"]["made_for"], "tests/llama_sharded");
  EXPECT_EQ(report["adapter"]["rank"], 4);
  EXPECT_EQ(report["adapter"]["targets"], "q_proj, v_proj");
  EXPECT_EQ(report["adapter"]["parameters"], 2 * 4 * (64 + 64 + 64 + 32));

  const Outcome merged = Inspect(absl::StrCat(kTiny, "llama_sharded+", kAdapter, " --json"));
  const json model = json::parse(merged.text);
  EXPECT_EQ(model["adapter"], report["adapter"]);
  EXPECT_EQ(model["weights"]["files"], 3);
  // The tiny model has no tokenizer; the adapter is no problem.
  EXPECT_THAT(merged.text, AllOf(HasSubstr("tokenizer.json"), ::testing::Not(HasSubstr("lora_A"))));
  EXPECT_THAT(Inspect(absl::StrCat(kBase, "+", kAdapter)).text,
              HasSubstr("q_proj.lora_A.weight has shape [4, 64], want [4, 256]"));
}

// A segment of three chunks without a footer; a payload of the second is damaged.
TEST(Inspect, ReadsAPrefixStoreAndVerifiesItsChecksums) {
  const TemporaryDirectory store;
  EXPECT_EQ(Inspect(absl::StrCat("store ", store.path())).code, 2) << "no store is there";
  std::ofstream(store.path() + "/" + kStoreLock);
  const auto head = EncodeSegmentHead({.number = 1});
  std::string bytes(head.begin(), head.end());
  bytes.resize(kStoreBlock);
  const std::vector<uint8_t> payload(100, 7);
  for (uint32_t block = 1; block <= 3; ++block) {
    ChunkMeta meta{.tokens = {1, 2, 3}, .frames = {{{0, 1, 0, 0, 3}, 100}}};
    meta.entry.tokens = 3;
    meta.entry.key[0] = static_cast<uint8_t>(block);
    const std::vector<uint8_t> record = EncodeChunkRecord(&meta, {1, block}, {payload});
    bytes.append(record.begin(), record.end());
    if (block == 2) bytes[2 * kStoreBlock + meta.entry.meta_bytes] ^= 1;
  }
  std::ofstream(store.path() + "/" + SegmentName(1), std::ios::binary) << bytes;
  const Outcome outcome = Inspect(absl::StrCat("store ", store.path(), " --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const json report = json::parse(outcome.text);
  EXPECT_EQ(report["store"]["chunks"], 2);
  EXPECT_EQ(report["store"]["damaged"], 1);
  EXPECT_EQ(report["store"]["tokens"], 6);
  EXPECT_EQ(report["store"]["bytes"], 4 * kStoreBlock);
  EXPECT_EQ(report["segments"][0]["state"], "not sealed");

  const int lock = open((store.path() + "/" + kStoreLock).c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  EXPECT_THAT(Inspect(absl::StrCat("store ", store.path())).text, HasSubstr("a server has this store open"));
  close(lock);
}

TEST(Inspect, TeachesAndRefusesMistakes) {
  EXPECT_THAT(Inspect("--help").text, HasSubstr("aludel-inspect PRODUCER CONSUMER"));
  EXPECT_EQ(Inspect("").code, 2);
  EXPECT_EQ(Inspect(absl::StrCat(kBase, " --codec ", kCodec)).code, 2);
  EXPECT_EQ(Inspect(absl::StrCat(kBase, " --compute int3")).code, 2);
}

}  // namespace
}  // namespace aludel
