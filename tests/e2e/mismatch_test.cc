// Producers, consumers and artifacts that do not belong together: refused when servers start and meet, with
// the reason in the log.
#include <sys/wait.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/bench/make_model.h"
#include "tests/e2e/fleet.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/write_adapter.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kBase[] = "deploy/demo/base";
constexpr char kChat[] = "deploy/demo/chat";
constexpr char kCodec[] = "deploy/demo/codec";

void CopyAll(const std::string& from, const TemporaryDirectory& to) {
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    std::filesystem::copy_file(entry.path(), to.File(entry.path().filename().string()));
  }
}

void Replace(const TemporaryDirectory& directory, const std::string& file, const std::string& from,
             const std::string& to) {
  std::string text = directory.Read(file);
  ASSERT_NE(text.find(from), std::string::npos) << file << " holds no " << from;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  directory.Write(file, text);
}

// The decode server refuses this producer and says why; it still answers, by itself.
void ExpectRefusal(const std::string& producer, const std::string& reason) {
  Fleet fleet({.prefill_model = producer, .decode_model = kChat});
  ASSERT_TRUE(fleet.Start("refused"));
  EXPECT_THAT(fleet.decode().Log(), HasSubstr("is refused: "));
  EXPECT_THAT(fleet.decode().Log(), HasSubstr(reason));
  const Answer answer = fleet.Ask(Fleet::Request(DemoPrompts(1)[0], 2, ""));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "local");
}

TEST(Mismatch, AProducerWithAnotherVocabularyIsRefused) {
  TemporaryDirectory other;
  CopyAll(kBase, other);
  Replace(other, "tokenizer.json", "<|assistant|>", "<|somebody|>");
  ExpectRefusal(other.path(), "vocabulary fingerprint is ");
}

TEST(Mismatch, AProducerWithOtherAddedTokensServes) {
  TemporaryDirectory other;
  CopyAll(kBase, other);
  Replace(other, "tokenizer.json", R"("added_tokens": [)",
          R"("added_tokens": [{"id": 2048, "content": "<|reserved|>", "special": true},)");
  Fleet fleet({.prefill_model = other.path(), .decode_model = kChat});
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(DemoPrompts(1)[0], 2, ""));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_NE(answer.started.plan(), "local");
}

TEST(Mismatch, AProducerWithAnotherRopeServes) {
  TemporaryDirectory other;
  CopyAll(kBase, other);
  Replace(other, "config.json", "500000.0", "10000.0");
  Fleet fleet({.prefill_model = other.path(), .decode_model = kChat});
  ASSERT_TRUE(fleet.Start());
  EXPECT_THAT(fleet.decode().Log(),
              HasSubstr("the rope is theta 10000 in the producer and theta 500000 in the consumer"));
  const Answer answer = fleet.Ask(Fleet::Request(DemoPrompts(1)[0], 2, ""));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_NE(answer.started.plan(), "local");
}

TEST(Mismatch, AProducerOfAnotherShapeIsRefused) {
  TemporaryDirectory other;
  ASSERT_TRUE(MakeModel({.shape = "tiny", .out = other.path(), .tokenizer = kBase}, [](int64_t, int64_t) {
                return true;
              }).ok());
  ExpectRefusal(other.path(), "layers is 2, want 8; kv_heads is 2, want 4; head_dim is 16, want 32");
}

// A server that is given an artifact of other models does not start.
void ExpectNoStart(const std::string& binary, const std::string& model, const std::string& codec,
                   const std::string& reason, const std::string& adapter = "") {
  const int port = FreePort();
  const std::string name = binary == "aludel-decode" ? "served_model_name: 'demo' " : "";
  ServerProcess server(binary,
                       absl::StrCat("listen: '127.0.0.1:", FreePort(), "' admin_listen: '127.0.0.1:", port,
                                    "' ", name, "engine { directory: '", model, "' adapter: '", adapter,
                                    "' threads: 1 kv_blocks: 64 } codec { artifact: '", codec, "' }"),
                       port);
  const int status = server.WaitExit();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(server.Log(), HasSubstr(reason));
}

TEST(Mismatch, AServerWithAnArtifactOfOtherModelsDoesNotStart) {
  ExpectNoStart("aludel-prefill", kChat, kCodec, "was calibrated for producer \"base\" with hash");
  ExpectNoStart("aludel-decode", kBase, kCodec, "no decoder for this model, whose hash is");
}

TEST(Mismatch, AnArtifactOfABaseDoesNotServeItWithAnAdapter) {
  const TemporaryDirectory adapter;
  WriteAdapter(adapter, kBase, 0.01f);
  ExpectNoStart("aludel-prefill", kBase, kCodec, "was calibrated for producer \"base\" with hash",
                adapter.path());
  ExpectNoStart("aludel-decode", kChat, kCodec, "no decoder for this model, whose hash is", adapter.path());
  adapter.Write("adapter_config.json",
                R"({"peft_type": "LORA", "target_modules": ["q_proj"], "use_dora": true})");
  ExpectNoStart("aludel-decode", kChat, "", "adapter_config.json: use_dora is true", adapter.path());
}

TEST(Mismatch, AServerWithADamagedArtifactDoesNotStart) {
  TemporaryDirectory damaged;
  CopyAll(kCodec, damaged);
  for (const auto& entry : std::filesystem::directory_iterator(damaged.path())) {
    const std::string name = entry.path().filename().string();
    if (name.find(".encoder.safetensors") == std::string::npos) continue;
    std::string bytes = damaged.Read(name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    damaged.Write(name, bytes);
  }
  ExpectNoStart("aludel-prefill", kBase, damaged.path(), "SHA-256 of its ");
}

}  // namespace
}  // namespace aludel
