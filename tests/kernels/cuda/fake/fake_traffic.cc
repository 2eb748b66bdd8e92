#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/sample.cuh"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/gemm/adapted_index.h"
#include "kernels/cuda/gemm/batch_index.h"
#include "kernels/cuda/gemm/fp8_index.h"
#include "kernels/cuda/gemm/fused_args.h"
#include "kernels/cuda/gemm/low_rank_index.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/cuda/latents.cuh"
#include "tests/kernels/cuda/fake/fake_cuda.h"

// What kernels ask of a card's memory and of its products, from what they are given. Operands that all blocks read count once:
// they are read from memory once and then from the cache.
namespace aludel::cuda::fake {
namespace {

using Costs = std::map<std::string, std::function<std::function<Cost()>(void** arguments, Extent grid)>>;

// The arguments are copied when the kernel is launched. What they point at is read when it runs.
template <typename... Args, typename Count>
auto Counted(const Count& count) {
  return [count](void** arguments, Extent grid) -> std::function<Cost()> {
    return [&]<size_t... i>(std::index_sequence<i...>)->std::function<Cost()> {
      std::tuple<Args...> copies(*static_cast<Args*>(arguments[i])...);
      return [count, copies, grid] {
        return std::apply([&](const Args&... args) { return count(int64_t{grid.x}, args...); }, copies);
      };
    }
    (std::index_sequence_for<Args...>{});
  };
}

int64_t ElementBytes(DType dtype) { return static_cast<int64_t>(SizeOf(dtype)); }
int64_t BytesOf(const TensorView& view) { return view.rows * view.cols * ElementBytes(view.dtype); }

// of `rows` rows of `in` by `outs` outputs.
int64_t ProductFlops(int64_t rows, int64_t in, int64_t outs) { return 2 * rows * in * outs; }

Cost CostOfProduct(int64_t, const SkinnyArgs& args, int64_t weight_bytes) {
  const int64_t rows = args.out.rows, outs = args.out.cols;
  return {weight_bytes + rows * args.in * (args.a_scales == nullptr ? 2 : 1) +
              BytesOf(args.out) * (args.accumulate ? 2 : 1) + (args.bias == nullptr ? 0 : outs * 4),
          ProductFlops(rows, args.in, outs)};
}

// Sums of pieces come and go in the cache.
Cost CostOfBatch(int64_t, const BatchArgs& args) {
  const int64_t rows = args.out.rows, outs = args.out.cols;
  return {(outs + rows) * args.in * 2 + BytesOf(args.out) * (args.accumulate ? 2 : 1) +
              (args.bias == nullptr ? 0 : outs * 4),
          ProductFlops(rows, args.in, outs)};
}

Cost CostOfNormed(const NormedRows& a, int64_t outs, const float* bias, int64_t out_bytes) {
  return {outs * a.in * 2 + a.rows * a.in * 4 + a.in * 4 + (bias == nullptr ? 0 : outs * 4) + out_bytes,
          ProductFlops(a.rows, a.in, outs)};
}

Cost CostOfQkv(int64_t, const QkvArgs& args) {
  const int64_t q_dim = int64_t{args.heads} * args.kv.head_dim;
  const int64_t kv_dim = int64_t{args.kv.kv_heads} * args.kv.head_dim;
  const int64_t out_bytes = args.a.rows * (q_dim * 4 + 2 * kv_dim * ElementBytes(args.kv.dtype));
  return CostOfNormed(args.a, q_dim + 2 * kv_dim, args.bias, out_bytes + args.a.rows * args.kv.head_dim * 4);
}

Cost CostOfGate(int64_t, const GateArgs& args) {
  return CostOfNormed(args.a, 2 * args.cols, args.bias, args.a.rows * args.cols * 2);
}

Cost CostOfAttention(int64_t, const AttentionArgs& args) {
  const int64_t heads = args.q.cols / args.kv.head_dim;
  const int64_t position_bytes =
      2 * int64_t{args.kv.kv_heads} * args.kv.head_dim * ElementBytes(args.kv.dtype);
  Cost cost{BytesOf(args.q) + BytesOf(args.out), 0};
  for (int s = 0; s < args.table.count; ++s) {
    // Another launch's.
    if (args.work.first_unit[s] == args.work.first_unit[s + 1]) continue;
    const SequenceEntry& entry = args.table.entries[s];
    const int64_t end = entry.position_begin + entry.rows;
    cost.bytes += (end - FirstVisible(entry.position_begin, args.window)) * position_bytes;
    for (int64_t row = 0; row < entry.rows; ++row) {
      const int64_t position = entry.position_begin + row;
      cost.flops += 4 * heads * args.kv.head_dim * (position + 1 - FirstVisible(position, args.window));
    }
  }
  return cost;
}

void AddProducts(Costs& to) {
  for (const char* const tiles : {"1", "2"}) {
    to[std::string("Bf16Product<") + tiles + ">"] =
        Counted<SkinnyArgs>([](int64_t grid, const SkinnyArgs& args) {
          return CostOfProduct(grid, args, args.out.cols * args.in * 2);
        });
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
      to["ScaledProduct<(WeightFormat)" + std::to_string(static_cast<int>(format)) + ", " + tiles + ">"] =
          Counted<SkinnyArgs>([format](int64_t grid, const SkinnyArgs& args) {
            const int64_t row_bytes = ScaledRowBytes(args.in, format) +
                                      RunsOf(args.in) * kRunGroups * static_cast<int64_t>(sizeof(Bf16));
            return CostOfProduct(grid, args, args.out.cols * row_bytes);
          });
    }
  }
  for (const char* const tiles : {"2", "4", "8"}) {
    to[std::string("BatchProduct<") + tiles + ">"] = Counted<BatchArgs>(CostOfBatch);
  }
  to["QuantizeRows"] = Counted<TensorView>([](int64_t, const TensorView& a) -> Cost {
    return {BytesOf(a) + a.rows * a.cols, 0};
  });
  for (const char* const page : {"float", "Bf16", "Fp8"}) {
    to[std::string("NormQkv<") + page + ">"] = Counted<QkvArgs>(CostOfQkv);
  }
  to["NormGateUp"] = Counted<GateArgs>(CostOfGate);
  to["RopeAngles"] = Counted<const float*, float, int, SequenceTable>(
      [](int64_t, const float*, float, int half, const SequenceTable& table) -> Cost {
        return {(table.tokens * 2 + 1) * half * 4, 0};
      });
}

// Codes count with the zeros that fill their rows up.
void AddFp8(Costs& to) {
  for (const char* const tiles : {"1", "2"}) {
    to[std::string("Fp8Product<") + tiles + ">"] =
        Counted<Fp8SkinnyArgs>([](int64_t, const Fp8SkinnyArgs& args) -> Cost {
          const int64_t rows = args.out.rows, outs = args.out.cols;
          return {outs * (Fp8Padded(args.in) + 4) + rows * args.in * 2 +
                      BytesOf(args.out) * (args.accumulate ? 2 : 1) + (args.bias == nullptr ? 0 : outs * 4),
                  ProductFlops(rows, args.in, outs)};
        });
  }
  for (const char* const type : {"float", "Bf16"}) {
    for (const char* const vectors : {"true", "false"}) {
      const std::string types = std::string("<") + type + ", " + vectors + ">";
      to["QuantizeFp8" + types] = Counted<Fp8RowsArgs>([](int64_t, const Fp8RowsArgs& args) -> Cost {
        return {BytesOf(args.rows) + args.rows.rows * (Fp8Padded(args.rows.cols) + 4), 0};
      });
      to["ScaleFp8" + types] = Counted<Fp8SumsArgs>([](int64_t, const Fp8SumsArgs& args) -> Cost {
        return {args.out.rows * args.out.cols * 4 + BytesOf(args.out) * (args.accumulate ? 2 : 1) +
                    args.out.cols * (args.bias == nullptr ? 4 : 8),
                0};
      });
    }
  }
}

// A and B once for as many rows as have them; sums are written once and come back from the cache.
Cost CostOfAdded(const AddedArgs& added, int64_t in) {
  Cost cost{int64_t{added.sum_count} * 4, 0};
  std::set<const void*> read;
  for (int s = 0; s < added.first_slice[kFusedRows]; ++s) {
    const AddedSlice& slice = added.slices[s];
    const int64_t numbers = in + slice.outputs;
    if (read.insert(slice.a).second) cost.bytes += slice.rank * numbers * 2;
    cost.flops += ProductFlops(1, numbers, slice.rank);
  }
  return cost;
}

Cost operator+(const Cost& a, const Cost& b) { return {a.bytes + b.bytes, a.flops + b.flops}; }

// Those of products with what adapters add to them.
void AddAdapted(Costs& to) {
  to["AdaptedProduct"] =
      Counted<SkinnyArgs, AddedArgs>([](int64_t grid, const SkinnyArgs& args, const AddedArgs& added) {
        return CostOfProduct(grid, args, args.out.cols * args.in * 2) + CostOfAdded(added, args.in);
      });
  for (const char* const page : {"float", "Bf16", "Fp8"}) {
    to[std::string("AdaptedQkv<") + page + ">"] =
        Counted<QkvArgs, AddedArgs>([](int64_t grid, const QkvArgs& args, const AddedArgs& added) {
          return CostOfQkv(grid, args) + CostOfAdded(added, args.a.in);
        });
  }
  to["AdaptedGateUp"] =
      Counted<GateArgs, AddedArgs>([](int64_t grid, const GateArgs& args, const AddedArgs& added) {
        return CostOfGate(grid, args) + CostOfAdded(added, args.a.in);
      });
}

// `of` every tile of a launch, and so of an adapter once for as many rows as share a tile.
template <typename OfTile>
auto CountedTiles(const OfTile& of) {
  return Counted<LowRankArgs>([of](int64_t, const LowRankArgs& args) {
    Cost sum;
    for (int32_t t = 0; t < args.count; ++t) {
      const Cost cost = of(args, args.tiles[t]);
      sum.bytes += cost.bytes;
      sum.flops += cost.flops;
    }
    return sum;
  });
}

void AddLowRank(Costs& to) {
  const auto shrink = CountedTiles([](const LowRankArgs& args, const LowRankTile& tile) -> Cost {
    const int64_t in = args.x.cols, rank = tile.update.rank;
    return {(rank + tile.count) * in * ElementBytes(args.x.dtype) + tile.count * rank * 4,
            ProductFlops(tile.count, in, rank)};
  });
  // Of spans that have one rank and outputs in whole tiles, as those of the models that are counted.
  const auto expand = CountedTiles([](const LowRankArgs& args, const LowRankTile& tile) -> Cost {
    const int64_t outs = int64_t{tile.update.out_tiles} * kLowRankOuts;
    const int64_t rank = tile.update.rank / tile.update.span_count;
    return {rank * outs * ElementBytes(args.x.dtype) + tile.count * int64_t{tile.update.rank} * 4 +
                2 * tile.count * outs * ElementBytes(args.out.dtype),
            ProductFlops(tile.count, rank, outs)};
  });
  for (const char* const types : {"float, true", "float, false", "Bf16, true", "Bf16, false"}) {
    to["Shrink<" + std::string(types) + ">"] = shrink;
  }
  for (const char* const types : {"float, float", "Bf16, float", "Bf16, Bf16"}) {
    to["Expand<" + std::string(types) + ">"] = expand;
  }
}

// Those that go over rows of a type, once for each pair of types.
template <typename In, typename Out>
void AddRows(Costs& to, const std::string& in, const std::string& out) {
  constexpr int64_t kBoth = sizeof(In) + sizeof(Out);
  for (const char* const vectors : {"true", "false"}) {
    const std::string types = "<" + in + ", " + out + ", ";
    to["Norm" + types + vectors + ">"] =
        Counted<const In*, int64_t, int, int64_t, const float*, float, Out*, int64_t>(
            [](int64_t grid, const In*, int64_t, int, int64_t width, const float*, float, Out*,
               int64_t) -> Cost {
              return {(grid * kBoth + 4) * width, 0};
            });
    to["Silu" + types + vectors + ">"] = Counted<const In*, int64_t, Out*, int64_t, int64_t, bool>(
        [](int64_t grid, const In*, int64_t, Out*, int64_t, int64_t cols, bool gated) -> Cost {
          return {
              grid * cols *
                  (static_cast<int64_t>(sizeof(In)) * (gated ? 2 : 1) + static_cast<int64_t>(sizeof(Out))),
              0};
        });
    for (const char* const index : {"int", "long"}) {
      to["CopyRows" + types + index + ", " + vectors + ">"] =
          Counted<const In*, int64_t, const void*, Out*, int64_t, int64_t>(
              [](int64_t grid, const In*, int64_t, const void*, Out*, int64_t, int64_t cols) -> Cost {
                return {grid * cols * kBoth, 0};
              });
    }
  }
  for (const auto& [page, page_bytes] : {std::pair("float", 4), std::pair("Bf16", 2), std::pair("Fp8", 1)}) {
    for (const char* const vectors : {"true", "false"}) {
      to["RopeWriteKv<" + in + ", " + out + ", " + page + ", " + vectors + ">"] =
          Counted<const In*, int64_t, const Out*, int64_t, const float*, float, SequenceTable, KvPlanes,
                  LayerRun>([bytes = page_bytes](int64_t, const In*, int64_t, const Out*, int64_t,
                                                 const float*, float, const SequenceTable& table,
                                                 const KvPlanes& kv, const LayerRun& run) -> Cost {
            return {run.layers * table.tokens * kv.kv_heads * kv.head_dim * (kBoth + 2 * bytes), 0};
          });
    }
  }
}

Cost CostOfLatents(int64_t, const LatentArgs& args) {
  int64_t bits = 0;
  for (int i = 0; i < args.columns; ++i) bits += args.planes[i].stored_bits();
  const int64_t element = ElementBytes(args.narrow ? DType::kBf16 : DType::kF32);
  return {args.tokens * (bits / 8 + args.columns * element), 0};
}

Costs MakeCosts() {
  Costs to;
  to["Pack"] = to["Unpack"] = Counted<LatentArgs>(CostOfLatents);
  AddProducts(to);
  AddFp8(to);
  AddAdapted(to);
  AddLowRank(to);
  AddRows<float, float>(to, "float", "float");
  AddRows<float, Bf16>(to, "float", "Bf16");
  AddRows<Bf16, float>(to, "Bf16", "float");
  AddRows<Bf16, Bf16>(to, "Bf16", "Bf16");
  for (const auto& [type, bytes] : {std::pair("float", 4), std::pair("Bf16", 2)}) {
    for (const char* const vectors : {"true", "false"}) {
      to[std::string("Rope<") + type + ", " + vectors + ">"] =
          Counted<void*, int64_t, int, int, const float*, float, SequenceTable>(
              [bytes = bytes](int64_t, void*, int64_t, int heads, int half, const float*, float,
                              const SequenceTable& table) -> Cost {
                return {table.tokens * heads * 2 * half * 2 * bytes, 0};
              });
    }
  }
  // Of rows whose token is the likeliest; others are gone over several times.
  to["Sample"] = Counted<SampleArgs>([](int64_t grid, const SampleArgs& args) -> Cost {
    return {grid * args.vocab * 4, 0};
  });
  to["AddTo"] = Counted<double*, const float*, int64_t, int64_t>(
      [](int64_t grid, double*, const float*, int64_t, int64_t cols) -> Cost {
        return {grid * cols * 20, 0};
      });
  for (const char* const vectors : {"true", "false"}) {
    to[std::string("AddBias<") + vectors + ">"] =
        Counted<const float*, int64_t, const float*, Bf16*, int64_t, int64_t>(
            [](int64_t grid, const float*, int64_t, const float*, Bf16*, int64_t, int64_t cols) -> Cost {
              return {(grid * 6 + 4) * cols, 0};
            });
  }
  return to;
}

}  // namespace

std::function<Cost()> CostOf(const std::string& kernel, void** arguments, Extent grid) {
  static const Costs costs = MakeCosts();
  if (kernel.rfind("MmaAttention<", 0) == 0 || kernel.rfind("WgmmaAttention<", 0) == 0) {
    return Counted<AttentionArgs>(CostOfAttention)(arguments, grid);
  }
  const auto found = costs.find(kernel);
  return found == costs.end() ? nullptr : found->second(arguments, grid);
}

}  // namespace aludel::cuda::fake
