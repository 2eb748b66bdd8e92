#include "kernels/cuda/launch_digest.h"

#include <functional>
#include <set>
#include <vector>

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

// `changes`, each applied to values of its own, all give digests of their own, and so does the unchanged.
template <typename T>
void ExpectAllDiffer(const std::vector<std::function<void(T&)>>& changes) {
  std::set<size_t> digests = {absl::HashOf(T{})};
  EXPECT_EQ(digests.count(absl::HashOf(T{})), 1);
  for (const auto& change : changes) {
    T value{};
    change(value);
    digests.insert(absl::HashOf(value));
  }
  EXPECT_EQ(digests.size(), changes.size() + 1);
}

template <typename T>
T* Address(int64_t number) {
  return reinterpret_cast<T*>(number);
}

TEST(LaunchDigest, TellsEveryFieldOfWhatLaunchersTake) {
  ExpectAllDiffer<TensorView>({[](auto& v) { v.data = Address<void>(64); },
                               [](auto& v) { v.dtype = DType::kBf16; }, [](auto& v) { v.rows = 1; },
                               [](auto& v) { v.cols = 1; }, [](auto& v) { v.stride = 1; }});
  ExpectAllDiffer<SequenceTable>({[](auto& t) { t.first_token = Address<int64_t>(64); },
                                  [](auto& t) { t.entries = Address<SequenceEntry>(64); },
                                  [](auto& t) { t.blocks = Address<int32_t>(64); },
                                  [](auto& t) { t.count = 1; }, [](auto& t) { t.tokens = 1; }});
  ExpectAllDiffer<AttentionArgs>({[](auto& a) { a.q.rows = 1; },
                                  [](auto& a) { a.out.rows = 1; },
                                  [](auto& a) { a.scale = 1; },
                                  [](auto& a) { a.window = 1; },
                                  [](auto& a) { a.table.count = 1; },
                                  [](auto& a) { a.work.tiling.group = 1; },
                                  [](auto& a) { a.work.tiling.chunk_heads = 1; },
                                  [](auto& a) { a.work.tiling.chunks = 1; },
                                  [](auto& a) { a.work.tiling.rows_per_tile = 1; },
                                  [](auto& a) { a.work.first_unit = Address<int64_t>(64); },
                                  [](auto& a) { a.work.first_tile = Address<int64_t>(64); },
                                  [](auto& a) { a.work.splits = Address<int64_t>(64); },
                                  [](auto& a) { a.work.split_keys = Address<int64_t>(64); },
                                  [](auto& a) { a.kv.k = Address<void>(64); },
                                  [](auto& a) { a.kv.v = Address<void>(64); },
                                  [](auto& a) { a.kv.dtype = DType::kBf16; },
                                  [](auto& a) { a.kv.block_tokens = 1; },
                                  [](auto& a) { a.kv.kv_heads = 1; },
                                  [](auto& a) { a.kv.head_dim = 1; },
                                  [](auto& a) { a.partial = Address<float>(64); },
                                  [](auto& a) { a.arrived = Address<uint32_t>(64); }});
  ExpectAllDiffer<SkinnyArgs>(
      {[](auto& a) { a.w = Address<void>(64); }, [](auto& a) { a.w_scales = Address<Bf16>(64); },
       [](auto& a) { a.a = Address<void>(64); }, [](auto& a) { a.a_scales = Address<float>(64); },
       [](auto& a) { a.a_stride = 1; }, [](auto& a) { a.in = 1; },
       [](auto& a) { a.bias = Address<float>(64); }, [](auto& a) { a.accumulate = true; },
       [](auto& a) { a.out.cols = 1; }});
  ExpectAllDiffer<BatchArgs>(
      {[](auto& a) { a.w = Address<Bf16>(64); }, [](auto& a) { a.a = Address<Bf16>(64); },
       [](auto& a) { a.a_stride = 1; }, [](auto& a) { a.in = 1; },
       [](auto& a) { a.bias = Address<float>(64); }, [](auto& a) { a.accumulate = true; },
       [](auto& a) { a.out.cols = 1; }, [](auto& a) { a.cut.tiles = 1; }, [](auto& a) { a.cut.steps = 1; },
       [](auto& a) { a.cut.blocks = 1; }, [](auto& a) { a.pieces = Address<float>(64); },
       [](auto& a) { a.arrived = Address<uint32_t>(64); }});
  ExpectAllDiffer<LowRankArgs>(
      {[](auto& a) { a.tiles = Address<LowRankTile>(64); }, [](auto& a) { a.count = 1; },
       [](auto& a) { a.most_rank = 1; }, [](auto& a) { a.most_out_tiles = 1; }, [](auto& a) { a.x.rows = 1; },
       [](auto& a) { a.out.rows = 1; }, [](auto& a) { a.sums = Address<float>(64); }});
}

}  // namespace
}  // namespace aludel::cuda
