#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/open_device.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {
namespace {

// On the CPU's own kernels a sequence's logits are the same bits alone, in any chunks and in any batch, on
// any number of threads. (Not where oneDNN multiplies, on AMX: it chooses its order by shape.)

struct Way {
  const char* instructions;
  DType compute;
  DType kv;
  WeightFormat weights;
};

class BatchInvariance : public ::testing::TestWithParam<Way> {
 protected:
  static constexpr int kTokens = 150;
  static constexpr int kBlockTokens = 16;

  void SetUp() override {
    auto device = OpenDevice({.name = "cpu", .threads = 2, .instructions = GetParam().instructions});
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
    model_ = Transformer::Load(device_.get(), "deploy/demo/chat",
                               {.compute = GetParam().compute, .weights = GetParam().weights})
                 .value();
    const int64_t blocks = 4 * (kTokens / kBlockTokens + 1);
    pool_ =
        BlockPool::Create(device_.get(), model_->MakeKvLayout(blocks, kBlockTokens, GetParam().kv)).value();
    ids_.resize(kTokens);
    for (int i = 0; i < kTokens; ++i) ids_[i] = (i * 37 + 11) % model_->config().vocab;
  }

  // Tokens [begin, begin + count) of `ids` at their positions.
  BatchItem Item(const BlockTable& table, const std::vector<int32_t>& ids, int begin, int count) {
    BatchItem item;
    item.ids = absl::MakeConstSpan(ids).subspan(begin, count);
    item.position = begin;
    item.blocks = table.ids();
    item.wants_logits = true;
    return item;
  }

  std::vector<float> Forward(std::vector<BatchItem> items) {
    std::vector<float> logits;
    EXPECT_TRUE(model_->Forward(absl::MakeSpan(items), *pool_, &logits).ok());
    return logits;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<int32_t> ids_;
};

TEST_P(BatchInvariance, ASequencesLogitsAreTheSameBitsInAnyChunksAndBatch) {
  BlockTable alone;
  ASSERT_TRUE(alone.Grow(*pool_, kTokens).ok());
  const std::vector<float> at_once = Forward({Item(alone, ids_, 0, kTokens)});

  BlockTable chunked;
  ASSERT_TRUE(chunked.Grow(*pool_, kTokens).ok());
  std::vector<float> in_chunks;
  int begin = 0;
  for (const int count : {1, 63, 2, 70, 13, 1}) {
    in_chunks = Forward({Item(chunked, ids_, begin, count)});
    begin += count;
  }
  ASSERT_EQ(begin, kTokens);
  EXPECT_EQ(in_chunks, at_once);

  // Others in the batch: a prompt of another length before it, and one that decodes behind it.
  std::vector<int32_t> others(ids_.rbegin(), ids_.rend());
  BlockTable batched, before, behind;
  before.Append(alone.blocks()[0]);  // any page will do: nobody looks at their logits
  chunked.Clear();
  ASSERT_TRUE(batched.Grow(*pool_, kTokens).ok());
  ASSERT_TRUE(behind.Grow(*pool_, 100).ok());
  Forward({Item(behind, others, 0, 99)});
  Forward({Item(before, others, 0, 9), Item(batched, ids_, 0, 101), Item(behind, others, 99, 1)});
  const std::vector<float> logits =
      Forward({Item(before, others, 9, 5), Item(batched, ids_, 101, kTokens - 101)});
  const auto vocab = static_cast<int64_t>(at_once.size());
  EXPECT_EQ(std::vector<float>(logits.begin() + vocab, logits.end()), at_once);
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, BatchInvariance,
    ::testing::Values(Way{"portable", DType::kF32, DType::kF32, WeightFormat::kF32},
                      Way{"avx2", DType::kBf16, DType::kBf16, WeightFormat::kBf16},
                      Way{"avx2", DType::kBf16, DType::kBf16, WeightFormat::kInt4},
                      Way{"avx2", DType::kBf16, DType::kBf16, WeightFormat::kFp8},
                      Way{"avx512", DType::kF32, DType::kBf16, WeightFormat::kF32},
                      Way{"avx512_bf16", DType::kBf16, DType::kBf16, WeightFormat::kBf16},
                      Way{"avx2", DType::kBf16, DType::kFp8, WeightFormat::kBf16},
                      Way{"avx512_bf16", DType::kF32, DType::kFp8, WeightFormat::kF32},
                      Way{"avx512_bf16", DType::kBf16, DType::kBf16, WeightFormat::kInt8},
                      Way{"avx512_bf16", DType::kBf16, DType::kBf16, WeightFormat::kInt4}),
    [](const auto& info) {
      return absl::StrCat(info.param.instructions, "_", Name(info.param.compute), "_",
                          Name(info.param.weights), "_", Name(info.param.kv));
    });

}  // namespace
}  // namespace aludel
