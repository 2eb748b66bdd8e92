#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/model/transformer.h"
#include "tests/e2e/fleet.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/write_adapter.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPrompts = 200;
constexpr uint32_t kTokens = 6;
constexpr int64_t kChunkTokens = 256;  // the servers' default

// Greedy tokens of one process that splits its prefill where the handoff does: all but the last token in
// the producer's chunks, then the last.
class Reference {
 public:
  explicit Reference(const ModelPath& path) {
    device_ = *OpenDevice({.name = "cpu", .threads = 1});
    model_ = *Transformer::Load(device_.get(), path, {.max_rows = kChunkTokens});
    pool_ = *BlockPool::Create(device_.get(), model_->MakeKvLayout(80, 16, DType::kBf16));
    for (BlockId block = 0; block < 80; ++block) blocks_.push_back(block);
  }

  std::vector<int32_t> Generate(const std::vector<int32_t>& prompt) {
    const auto handed_over = static_cast<int64_t>(prompt.size()) - 1;
    for (int64_t begin = 0; begin < handed_over; begin += kChunkTokens) {
      Run(absl::MakeConstSpan(prompt).subspan(begin, std::min(kChunkTokens, handed_over - begin)), begin,
          false);
    }
    std::vector<int32_t> tokens;
    int32_t next = prompt.back();
    for (uint32_t i = 0; i < kTokens; ++i) {
      next = Run(absl::MakeConstSpan(&next, 1), handed_over + i, true);
      tokens.push_back(next);
    }
    return tokens;
  }

 private:
  int32_t Run(absl::Span<const int32_t> ids, int64_t position, bool wants_logits) {
    BatchItem item{ids, position, blocks_, wants_logits, nullptr, absl::OkStatus()};
    EXPECT_TRUE(model_->Forward(absl::MakeSpan(&item, 1), *pool_, &logits_).ok());
    if (!wants_logits) return 0;
    return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<BlockId> blocks_;
  std::vector<float> logits_;
};

// "tcp", or shared memory (which needs tcp to find its peer).
class RawHandoff : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    prompts_ = new std::vector<std::vector<int32_t>>(DemoPrompts(kPrompts));
    expected_ = new std::vector<std::vector<int32_t>>;
    Reference reference("deploy/demo/base");
    for (const auto& prompt : *prompts_) expected_->push_back(reference.Generate(prompt));
  }
  static void TearDownTestSuite() {
    delete prompts_;
    delete expected_;
  }
  static std::vector<std::vector<int32_t>>* prompts_;
  static std::vector<std::vector<int32_t>>* expected_;
};
std::vector<std::vector<int32_t>>* RawHandoff::prompts_ = nullptr;
std::vector<std::vector<int32_t>>* RawHandoff::expected_ = nullptr;

TEST(RawHandoffOfAnAdapter, GivesExactlyTheTokensOfOneProcess) {
  const TemporaryDirectory adapter;
  WriteAdapter(adapter, "deploy/demo/base", 0.05f);
  Reference base("deploy/demo/base"), merged({"deploy/demo/base", adapter.path()});
  Fleet fleet({.engine = absl::StrCat("adapter: '", adapter.path(), "'")});
  ASSERT_TRUE(fleet.Start());
  int changed = 0;
  for (const std::vector<int32_t>& prompt : DemoPrompts(4)) {
    const Answer answer = fleet.Ask(Fleet::Request(prompt, kTokens));
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    ASSERT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
    ASSERT_EQ(answer.tokens, merged.Generate(prompt));
    changed += answer.tokens != base.Generate(prompt) ? 1 : 0;
  }
  EXPECT_GT(changed, 0) << "the adapter changes nothing: this shows nothing";
}

TEST_P(RawHandoff, WithOneModelGivesExactlyTheTokensOfOneProcess) {
  Fleet fleet({.ucx_transports = GetParam()});
  ASSERT_TRUE(fleet.Start());
  ASSERT_EQ(prompts_->size(), kPrompts);
  for (size_t i = 0; i < kPrompts; ++i) {
    const std::vector<int32_t>& prompt = (*prompts_)[i];
    const Answer answer = fleet.Ask(Fleet::Request(prompt, kTokens));
    ASSERT_TRUE(answer.status.ok()) << i << ": " << answer.status;
    ASSERT_EQ(answer.started.plan(), "remote") << i << ": " << answer.started.fallback_reason();
    EXPECT_EQ(answer.started.handed_over_tokens(), prompt.size() - 1);
    EXPECT_GT(answer.started.payload_bytes(), answer.started.raw_bytes());
    ASSERT_EQ(answer.tokens, (*expected_)[i]) << "prompt " << i;
    const v1::Stages& s = answer.started.stages();
    EXPECT_NEAR(s.queue() + s.prefill() + s.encode() + s.transfer() + s.reconstruct() + s.recompute() +
                    s.first_decode(),
                s.ttft(), 1e-6);
  }
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_TRUE(fleet.PrefillIsIdle());
  const std::string ucx = GetParam();
  EXPECT_THAT(fleet.prefill().Log(), HasSubstr(ucx.empty()    ? "receiver over tcp"
                                               : ucx == "tcp" ? "tcp/lo"
                                                              : "posix"));
  EXPECT_EQ(fleet.decode().Metric("aludel_engine_events_total{event=\"fallback\",model=\"demo\"}"), 0);
}

INSTANTIATE_TEST_SUITE_P(Over, RawHandoff, ::testing::Values("", "tcp", "posix,cma,tcp"),
                         [](const auto& info) {
                           return info.index == 0 ? "Tcp" : info.index == 1 ? "UcxTcp" : "UcxSharedMemory";
                         });

}  // namespace
}  // namespace aludel
