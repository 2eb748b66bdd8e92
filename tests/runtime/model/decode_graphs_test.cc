#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/replay_stats.h"
#include "kernels/sample.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"
#include "tests/testing/test_device.h"

namespace aludel {
namespace {

// Steps that only decode give the same bits whether or not the device remembers them as graphs. Devices that
// have none (the CPU) see that the steps are alike (tests/testing/guarded_device.h), and that it makes
// no difference.

constexpr int kBlockTokens = 16;
constexpr int kSteps = 24;

struct Case {
  const char* model;
  DType compute;
  std::optional<WeightFormat> weights;
};

// Batches that decode over two pools by turns.
class Decoder {
 public:
  Decoder(const Case& c, const DeviceOptions& device) {
    device_ = OpenTestDevice(device).value();
    model_ = Transformer::Load(device_.get(), c.model,
                               {.compute = c.compute, .weights = c.weights, .max_rows = 64})
                 .value();
    for (auto& pool : pools_) {
      pool = BlockPool::Create(device_.get(), model_->MakeKvLayout(120, kBlockTokens, c.compute)).value();
    }
  }

  // The logits and tokens of all steps of `batch` sequences. The first crosses 512 positions, where the model
  // has as many.
  std::vector<std::vector<float>> Run(int batch) {
    std::array<std::vector<BlockTable>, 2> tables;
    std::vector<int64_t> lengths(batch);
    for (int s = 0; s < batch; ++s) {
      lengths[s] = std::min<int64_t>(s == 0 ? 505 : 1 + 3 * s, model_->config().max_positions - kSteps);
      for (int pool = 0; pool < 2; ++pool) {
        tables[pool].emplace_back();
        EXPECT_TRUE(tables[pool][s].Grow(*pools_[pool], lengths[s] + kSteps).ok());
        Prefill(tables[pool][s], pool, s, lengths[s]);
      }
    }
    std::vector<std::vector<float>> logits;
    for (int step = 0; step < kSteps; ++step) {
      for (int pool = 0; pool < 2; ++pool) {
        std::vector<int32_t> ids(batch);
        std::vector<BatchItem> items(batch);
        for (int s = 0; s < batch; ++s) {
          ids[s] = Token(pool, s, lengths[s] + step);
          items[s].ids = absl::MakeConstSpan(&ids[s], 1);
          items[s].position = lengths[s] + step;
          // As an engine does: no more blocks than there are tokens for, some of the time.
          const int64_t blocks = step % 2 == 0 ? (items[s].position + kBlockTokens) / kBlockTokens
                                               : static_cast<int64_t>(tables[pool][s].ids().size());
          items[s].blocks = tables[pool][s].ids().subspan(0, blocks);
          items[s].wants_logits = s % 3 != 1;
          if (s % 3 != 1) continue;
          // A likely token or an unlikely one: what is drawn shows whose logits and which number it is from.
          items[s].draw = RowSampling{.temperature = 5.0, .uniform = (step * 7 + s) % 25 / 25.0};
        }
        std::vector<float>& found = logits.emplace_back();
        Forward(items, pool, &found);
        for (const BatchItem& item : items) found.push_back(static_cast<float>(item.token));
      }
    }
    return logits;
  }

  ReplayStats stats() const { return device_->replay_stats(model_->stream()); }
  bool on_gpu() const { return absl::StartsWith(device_->name(), "cuda"); }

 private:
  int32_t Token(int pool, int sequence, int64_t position) const {
    return static_cast<int32_t>((position * 37 + sequence * 101 + pool * 13 + 11) % model_->config().vocab);
  }

  void Prefill(const BlockTable& table, int pool, int sequence, int64_t tokens) {
    for (int64_t begin = 0; begin < tokens; begin += model_->options().max_rows) {
      std::vector<int32_t> ids;
      const int64_t end = std::min(tokens, begin + model_->options().max_rows);
      for (int64_t at = begin; at < end; ++at) ids.push_back(Token(pool, sequence, at));
      std::vector<BatchItem> items(1);
      items[0].ids = ids;
      items[0].position = begin;
      items[0].blocks = table.ids();
      std::vector<float> none;
      Forward(items, pool, &none);
    }
  }

  void Forward(std::vector<BatchItem>& items, int pool, std::vector<float>* logits) {
    const absl::Status status = model_->Forward(absl::MakeSpan(items), *pools_[pool], logits);
    EXPECT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::array<std::unique_ptr<BlockPool>, 2> pools_;
};

class DecodeGraphs : public ::testing::TestWithParam<Case> {};

TEST_P(DecodeGraphs, GiveTheSameBitsAsSingleLaunches) {
  Decoder with(GetParam(), {.graphs = true}), without(GetParam(), {.graphs = false});
  // On a GPU rows of the product of few rows, fused and not, and from 9 on of two sizes of that of batches.
  for (const int batch : {1, 2, 9, 17, 1}) {
    const auto expected = without.Run(batch);
    const auto found = with.Run(batch);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i], expected[i]) << "batch of " << batch << ", step " << i / 2 << ", pool " << i % 2;
    }
  }
  EXPECT_EQ(without.stats().captured, 0);
  if (!with.on_gpu()) return;
  const ReplayStats stats = with.stats();
  EXPECT_EQ(stats.reason, "");
  EXPECT_EQ(stats.changed, 0);
  // Of each key and bucket one step is eager and one captured; the second batch of one meets known keys.
  EXPECT_GT(stats.replayed, 4 * (stats.eager + stats.captured));
}

// Where a GPU can launch them so; elsewhere all are alike.
TEST_P(DecodeGraphs, KernelsThatBeginEarlyGiveTheSameBits) {
  Decoder plain(GetParam(), {.graphs = false});
  Decoder early[] = {Decoder(GetParam(), {.graphs = false, .dependent_launch = true}),
                     Decoder(GetParam(), {.graphs = true, .dependent_launch = true})};
  for (const int batch : {1, 2, 9, 16}) {
    const auto expected = plain.Run(batch);
    for (Decoder& one : early) ASSERT_EQ(one.Run(batch), expected) << "batch of " << batch;
  }
}

// A step of three sequences becomes one of four rows, the last of which nobody reads.
class FilledUpSteps : public ::testing::Test {
 protected:
  static constexpr std::array<int64_t, 4> kLengths = {17, 5, 32, 0};

  void SetUp() override {
    device_ = OpenTestDevice().value();
    model_ = Transformer::Load(device_.get(), "deploy/demo/chat", {.max_rows = 64}).value();
    pool_ = BlockPool::Create(device_.get(), model_->MakeKvLayout(8, kBlockTokens, DType::kBf16)).value();
    if (pool_->padding().empty()) GTEST_SKIP() << "steps are taken as they are";
    for (size_t s = 0; s < tables_.size(); ++s) {
      ASSERT_TRUE(tables_[s].Grow(*pool_, kLengths[s] + 1).ok());
      std::vector<int32_t> ids(kLengths[s]);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 + s * 101 + 11);
      if (!ids.empty()) Forward({{.ids = ids, .blocks = tables_[s].ids()}});
    }
  }

  std::vector<float> Forward(std::vector<BatchItem> items) {
    std::vector<float> logits;
    const absl::Status status = model_->Forward(absl::MakeSpan(items), *pool_, &logits);
    EXPECT_TRUE(status.ok()) << status;
    for (const BatchItem& item : items) tokens_.push_back(item.token);
    return logits;
  }

  // The next token of the first `count` sequences; the last one's is what fills up.
  std::vector<BatchItem> Items(size_t count) {
    std::vector<BatchItem> items(count);
    for (size_t s = 0; s < count; ++s) {
      items[s].ids = absl::MakeConstSpan(&ids_[s], 1);
      items[s].position = kLengths[s];
      items[s].blocks = tables_[s].ids();
      items[s].wants_logits = true;
    }
    return items;
  }

  // All that the pool hands out: by layer, keys and values, block, head, slot.
  std::vector<std::vector<char>> Slots() {
    const KvLayout& layout = pool_->layout();
    const size_t bytes = layout.head_dim * SizeOf(layout.dtype);
    std::vector<std::vector<char>> slots;
    for (int layer = 0; layer < layout.layers; ++layer) {
      for (const void* const plane : {pool_->Layer(layer).k, pool_->Layer(layer).v}) {
        std::vector<char> all(layout.plane_bytes());
        device_->CopyToHost(all.data(), plane, all.size(), model_->stream());
        EXPECT_TRUE(device_->Synchronize(model_->stream()).ok());
        for (size_t at = 0; at < all.size(); at += bytes) {
          slots.emplace_back(all.begin() + at, all.begin() + at + bytes);
        }
      }
    }
    return slots;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<BlockPool> pool_;
  std::array<BlockTable, 4> tables_;
  std::array<int32_t, 4> ids_ = {7, 300, 1999, 0};
  std::vector<int32_t> tokens_;
};

TEST_F(FilledUpSteps, WriteTheirSequencesTokensAlone) {
  const auto before = Slots();
  Forward(Items(3));
  const auto after = Slots();
  ASSERT_EQ(after.size(), before.size());
  const KvLayout& layout = pool_->layout();
  std::set<std::pair<int64_t, int64_t>> written;  // block and slot
  for (int s = 0; s < 3; ++s) {
    written.emplace(tables_[s].ids()[kLengths[s] / kBlockTokens], kLengths[s] % kBlockTokens);
  }
  size_t changed = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i] == before[i]) continue;
    ++changed;
    const auto slot = static_cast<int64_t>(i) % kBlockTokens;
    const auto block = static_cast<int64_t>(i) / kBlockTokens / layout.kv_heads % layout.blocks;
    EXPECT_TRUE(written.count({block, slot})) << "block " << block << ", slot " << slot;
  }
  EXPECT_EQ(changed, size_t{3} * 2 * layout.layers * layout.kv_heads);
}

TEST_F(FilledUpSteps, SayWhatTheirRowsSayBesideASequence) {
  const std::vector<float> four = Forward(Items(4));
  const std::vector<float> three = Forward(Items(3));
  const auto vocab = static_cast<size_t>(model_->config().vocab);
  ASSERT_EQ(four.size(), 4 * vocab);
  EXPECT_EQ(three, std::vector<float>(four.begin(), four.begin() + 3 * vocab));

  // One asks for nothing, one for a token, one for logits.
  const RowSampling sampling{.temperature = 2.0, .uniform = 0.7};
  std::vector<BatchItem> items = Items(3);
  items[0].wants_logits = items[1].wants_logits = false;
  items[1].draw = sampling;
  tokens_.clear();
  const std::vector<float> last = Forward(items);
  EXPECT_EQ(last, std::vector<float>(three.begin() + 2 * vocab, three.end()));
  EXPECT_EQ(tokens_[1], SampleRow(three.data() + vocab, static_cast<int64_t>(vocab), sampling));
}

TEST_F(FilledUpSteps, AreOfFewSizes) {
  std::set<int64_t> sizes;
  for (int64_t rows = 1; rows <= 64; ++rows) {
    const int64_t rounded = model_->RoundedRows(rows);
    EXPECT_GE(rounded, rows);
    EXPECT_LT(rounded, 2 * rows);
    EXPECT_EQ(model_->RoundedRows(rounded), rounded);
    sizes.insert(rounded);
  }
  EXPECT_THAT(sizes, ::testing::ElementsAre(1, 2, 4, 8, 16, 32, 64));
}

INSTANTIATE_TEST_SUITE_P(
    Models, DecodeGraphs,
    ::testing::Values(Case{"deploy/demo/chat", DType::kBf16, {}}, Case{"deploy/demo/chat", DType::kF32, {}},
                      Case{"deploy/demo/chat", DType::kBf16, WeightFormat::kInt8},
                      Case{"deploy/demo/chat", DType::kBf16, WeightFormat::kFp8},
                      Case{"tests/runtime/model/golden/tiny/mistral_sliding", DType::kBf16, {}},
                      Case{"tests/runtime/model/golden/tiny/qwen3_qk_norm", DType::kBf16, {}},
                      Case{"tests/runtime/model/golden/tiny/qwen2_bias", DType::kBf16, {}}));

}  // namespace
}  // namespace aludel
