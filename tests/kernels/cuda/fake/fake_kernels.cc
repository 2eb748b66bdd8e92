#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "tests/kernels/cuda/attention/simt_warpgroup.h"

#include "kernels/cuda/attention/mma_attention.cuh"
#include "kernels/cuda/attention/scalar_attention.cuh"
#include "kernels/cuda/attention/wgmma_attention.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm/adapted_gemm.cuh"
#include "kernels/cuda/gemm/batch_gemm.cuh"
#include "kernels/cuda/gemm/fp8_gemm.cuh"
#include "kernels/cuda/gemm/fused_gemm.cuh"
#include "kernels/cuda/gemm/low_rank.cuh"
#include "kernels/cuda/gemm/skinny_gemm.cuh"
#include "kernels/cuda/gemm/tile_gemm.cuh"
#include "kernels/cuda/latents.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/sample.cuh"
#include "kernels/cuda/token_quantizer.cuh"

#include <cxxabi.h>

#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/kernel_name.h"

// What every __global__ function of the .cu files does, which all are a few words around a body of a .cuh.
namespace aludel::cuda::fake {
namespace {

template <typename T>
std::string NameOf() {
  int status = 0;
  char* const text = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status);
  std::string name = WithoutNamespaces(text);
  std::free(text);
  return name;
}

std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(int value) { return std::to_string(value); }
std::string Text(std::string value) { return value; }

template <typename... Parts>
std::string Name(const char* kernel, const Parts&... parts) {
  std::string name = std::string(kernel) + "<";
  bool first = true;
  ((name += (first ? "" : ", ") + Text(parts), first = false), ...);
  return name + ">";
}

using Kernels = std::map<std::string, Kernel>;

// The arguments are copied when the kernel is launched, as CUDA does.
template <typename... Args, typename Run>
std::function<Body(void**)> Bind(const Run& run) {
  return [run](void** arguments) -> Body {
    return [&]<size_t... i>(std::index_sequence<i...>)->Body {
      std::tuple<Args...> copies(*static_cast<Args*>(arguments[i])...);
      return [run, copies](char* shared) {
        std::apply([&](const Args&... args) { run(shared, args...); }, copies);
      };
    }
    (std::index_sequence_for<Args...>{});
  };
}

template <typename F>
void ForElements(const F& f) {
  f(static_cast<float*>(nullptr));
  f(static_cast<Bf16*>(nullptr));
}
template <typename F>
void ForPages(const F& f) {
  ForElements(f);
  f(static_cast<Fp8*>(nullptr));
}
template <typename F>
void ForBools(const F& f) {
  f(std::true_type{});
  f(std::false_type{});
}
template <typename T>
using Of = std::remove_pointer_t<T>;

template <typename In, typename Out, bool kVectors>
void AddTyped(Kernels& to) {
  to[Name("Norm", NameOf<In>(), NameOf<Out>(), kVectors)] = {
      Bind<const In*, int64_t, int, int64_t, const float*, float, Out*, int64_t>(
          [](char* shared, auto... args) {
            NormRun<In, Out, kVectors>(args..., reinterpret_cast<float*>(shared));
          }),
      32 * sizeof(float)};
  to[Name("Silu", NameOf<In>(), NameOf<Out>(), kVectors)] = {
      Bind<const In*, int64_t, Out*, int64_t, int64_t, bool>(
          [](char*, auto... args) { SiluRow<In, Out, kVectors>(args...); }),
      0, 1024, true};
  const auto copy = [&]<typename Index>(Index) {
    to[Name("CopyRows", NameOf<In>(), NameOf<Out>(), NameOf<Index>(), kVectors)] = {
        Bind<const In*, int64_t, const Index*, Out*, int64_t, int64_t>(
            [](char*, auto... args) { CopyRow<In, Out, Index, kVectors>(args...); }),
        0, 1024, true};
  };
  copy(int32_t{});
  copy(int64_t{});
}

template <typename In, typename Out, typename Page, int kQueries, int kDims>
void AddScalarAttention(Kernels& to) {
  to[Name("Attention", NameOf<In>(), NameOf<Out>(), NameOf<Page>(), kQueries, kDims)] = {
      Bind<const In*, int64_t, Out*, int64_t, float, int64_t, SequenceTable, QueryTiling, const int64_t*,
           KvPlanes>([](char* shared, const auto&... args) {
        AttendTile<In, Out, Page, kQueries, kDims>(args..., reinterpret_cast<float4*>(shared));
      }),
      0, kScalarWarps * 32};
}

void AddTyped(Kernels& to) {
  ForElements([&](auto* in) {
    using In = Of<decltype(in)>;
    ForBools([&](auto vectors) {
      to[Name("Rope", NameOf<In>(), vectors.value)] = {
          Bind<In*, int64_t, int, int, const float*, float, SequenceTable>(
              [](char* shared, const auto&... args) {
                RotateToken<In, decltype(vectors)::value>(args..., reinterpret_cast<float*>(shared));
              })};
    });
    to[Name("Quantize", NameOf<In>())] = {
        Bind<const In*, TokenArgs>([](char* shared, const In* values, const TokenArgs& args) {
          float* const x = reinterpret_cast<float*>(shared);
          QuantizeToken(values, args, x + 32, x);
        }),
        32 * sizeof(float), kTokenThreads};
    to[Name("Dequantize", NameOf<In>())] = {
        Bind<const void*, const Bf16*, int64_t, WeightFormat, int64_t, In*>(
            [](char*, auto... args) { DequantizeOut<In>(args...); }),
        0, 1024, true};
    ForElements([&](auto* out) {
      using Out = Of<decltype(out)>;
      AddTyped<In, Out, true>(to);
      AddTyped<In, Out, false>(to);
      to[Name("TileGemm", NameOf<In>(), NameOf<Out>())] = {
          Bind<const In*, int64_t, const In*, const float*, bool, Out*, int64_t, int64_t, int64_t, int64_t>(
              [](char* shared, auto... args) {
                MultiplyTile<In, Out>(args..., reinterpret_cast<TileShared*>(shared));
              }),
          sizeof(TileShared)};
      ForPages([&](auto* page) {
        using Page = Of<decltype(page)>;
        ForBools([&](auto vectors) {
          to[Name("RopeWriteKv", NameOf<In>(), NameOf<Out>(), NameOf<Page>(), vectors.value)] = {
              Bind<const In*, int64_t, const Out*, int64_t, const float*, float, SequenceTable, KvPlanes,
                   LayerRun>([](char* shared, const auto&... args) {
                RotateAndWriteToken<In, Out, Page, decltype(vectors)::value>(
                    args..., reinterpret_cast<float*>(shared));
              })};
        });
        AddScalarAttention<In, Out, Page, 1, 4>(to);
        AddScalarAttention<In, Out, Page, 1, 8>(to);
        AddScalarAttention<In, Out, Page, 8, 4>(to);
        AddScalarAttention<In, Out, Page, 8, 8>(to);
      });
    });
  });
  ForBools([&](auto vectors) {
    to[Name("AddBias", vectors.value)] = {
        Bind<const float*, int64_t, const float*, Bf16*, int64_t, int64_t>(
            [](char*, auto... args) { AddBiasToRow<decltype(vectors)::value>(args...); }),
        0, 1024, true};
  });
  to["AddTo"] = {
      Bind<double*, const float*, int64_t, int64_t>([](char*, auto... args) { AddRowTo(args...); }), 0, 1024,
      true};
}

void AddProducts(Kernels& to) {
  const auto bf16 = [&]<int kTiles>(std::integral_constant<int, kTiles>) {
    to[Name("Bf16Product", kTiles)] = {Bind<SkinnyArgs>([](char* shared, const SkinnyArgs& args) {
                                         SkinnyBf16<kTiles>(args, reinterpret_cast<float*>(shared));
                                       }),
                                       kSkinnySharedBytes, kSkinnyThreads};
  };
  const auto scaled = [&]<WeightFormat kFormat, int kTiles>(std::integral_constant<WeightFormat, kFormat>,
                                                            std::integral_constant<int, kTiles>) {
    to[Name("ScaledProduct", "(WeightFormat)" + std::to_string(static_cast<int>(kFormat)), kTiles)] = {
        Bind<SkinnyArgs>([](char* shared, const SkinnyArgs& args) {
          SkinnyScaled<kFormat, kTiles>(args, reinterpret_cast<float*>(shared));
        }),
        kSkinnySumBytes, kSkinnyThreads};
  };
  const auto both = [&](auto tiles) {
    bf16(tiles);
    scaled(std::integral_constant<WeightFormat, WeightFormat::kInt8>{}, tiles);
    scaled(std::integral_constant<WeightFormat, WeightFormat::kInt4>{}, tiles);
  };
  both(std::integral_constant<int, 1>{});
  both(std::integral_constant<int, 2>{});
  to["QuantizeRows"] = {
      Bind<TensorView, int8_t*, float*>(
          [](char*, const TensorView& a, int8_t* values, float* scales) { QuantizeRun(a, values, scales); }),
      0, 32};
}

template <int... kTiles>
void AddBatch(Kernels& to) {
  ((to[Name("BatchProduct", kTiles)] = {Bind<BatchArgs>([](char* shared, const BatchArgs& args) {
                                          BatchBlock<kTiles>(args, shared);
                                        }),
                                        0, kBatchThreads}),
   ...);
}

template <int kTiles>
void AddFp8Product(Kernels& to) {
  to[Name("Fp8Product", kTiles)] = {Bind<Fp8SkinnyArgs>([](char* shared, const Fp8SkinnyArgs& args) {
                                      SkinnyFp8<kTiles>(args, reinterpret_cast<float*>(shared));
                                    }),
                                    kSkinnySumBytes, kSkinnyThreads};
}

void AddFp8(Kernels& to) {
  AddFp8Product<1>(to);
  AddFp8Product<2>(to);
  ForElements([&](auto* type) {
    using T = Of<decltype(type)>;
    ForBools([&](auto vectors) {
      constexpr bool kVectors = decltype(vectors)::value;
      to[Name("QuantizeFp8", NameOf<T>(), kVectors)] = {
          Bind<Fp8RowsArgs>([](char* shared, const Fp8RowsArgs& args) {
            QuantizeFp8Row<T, kVectors>(args, reinterpret_cast<uint32_t*>(shared));
          }),
          kFp8RowThreads / 32 * sizeof(uint32_t), kFp8RowThreads};
      to[Name("ScaleFp8", NameOf<T>(), kVectors)] = {
          Bind<Fp8SumsArgs>([](char*, const Fp8SumsArgs& args) { ScaleFp8Row<T, kVectors>(args); }), 0, 1024,
          true};
    });
  });
}

void AddFused(Kernels& to) {
  const auto sums = [](char* shared) { return reinterpret_cast<float*>(shared); };
  const auto rows = [](char* shared) { return reinterpret_cast<Bf16*>(shared + kSkinnySharedBytes); };
  ForPages([&](auto* page) {
    using Page = Of<decltype(page)>;
    to[Name("NormQkv", NameOf<Page>())] = {Bind<QkvArgs>([=](char* shared, const QkvArgs& args) {
                                             QkvBlock<Page>(args, rows(shared), sums(shared));
                                           }),
                                           kSkinnySharedBytes, kSkinnyThreads};
  });
  to["NormGateUp"] = {Bind<GateArgs>([=](char* shared, const GateArgs& args) {
                        GateUpBlock(args, rows(shared), sums(shared));
                      }),
                      kSkinnySharedBytes, kSkinnyThreads};
  to["RopeAngles"] = {Bind<const float*, float, int, SequenceTable, float*>(
                          [](char*, const auto&... args) { AnglesOfToken(args...); }),
                      0, 1024, true};
}

void AddAdapted(Kernels& to) {
  const auto sums = [](char* shared) { return reinterpret_cast<float*>(shared); };
  const auto rows = [](char* shared) { return reinterpret_cast<Bf16*>(shared + kSkinnySharedBytes); };
  to["AdaptedProduct"] = {
      Bind<SkinnyArgs, AddedArgs>([=](char* shared, const SkinnyArgs& args, const AddedArgs& added) {
        SkinnyBf16<1>(args, sums(shared), AdaptersAdded{added});
      }),
      kSkinnySharedBytes, kSkinnyThreads};
  ForPages([&](auto* page) {
    using Page = Of<decltype(page)>;
    to[Name("AdaptedQkv", NameOf<Page>())] = {
        Bind<QkvArgs, AddedArgs>([=](char* shared, const QkvArgs& args, const AddedArgs& added) {
          QkvBlock<Page>(args, rows(shared), sums(shared), AdaptersAdded{added});
        }),
        kSkinnySharedBytes, kSkinnyThreads};
  });
  to["AdaptedGateUp"] = {
      Bind<GateArgs, AddedArgs>([=](char* shared, const GateArgs& args, const AddedArgs& added) {
        GateUpBlock(args, rows(shared), sums(shared), AdaptersAdded{added});
      }),
      kSkinnySharedBytes, kSkinnyThreads};
}

template <typename T>
void AddShrink(Kernels& to) {
  ForBools([&](auto vectors) {
    to[Name("Shrink", NameOf<T>(), vectors.value)] = {
        Bind<LowRankArgs>([](char* shared, const LowRankArgs& args) {
          ShrinkTile<T, decltype(vectors)::value>(args, reinterpret_cast<float*>(shared));
        }),
        kShrinkSharedBytes, kShrinkThreads};
  });
}

template <typename T, typename Out>
void AddExpand(Kernels& to) {
  to[Name("Expand", NameOf<T>(), NameOf<Out>())] = {
      Bind<LowRankArgs>([](char* shared, const LowRankArgs& args) {
        ExpandTile<T, Out>(args, reinterpret_cast<float*>(shared));
      }),
      kExpandSharedBytes, kExpandThreads};
}

void AddLowRank(Kernels& to) {
  AddShrink<float>(to);
  AddShrink<Bf16>(to);
  AddExpand<float, float>(to);
  AddExpand<Bf16, float>(to);
  AddExpand<Bf16, Bf16>(to);
}

template <typename Shape>
void AddMma(Kernels& to) {
  to[Name("MmaAttention", NameOf<Shape>())] = {
      Bind<AttentionArgs>([](char* shared, const AttentionArgs& args) { AttendUnit<Shape>(args, shared); }),
      0, Shape::kThreads};
}

template <typename Shape>
void AddWgmma(Kernels& to) {
  to[Name("WgmmaAttention", NameOf<Shape>())] = {
      Bind<AttentionArgs>(
          [](char* shared, const AttentionArgs& args) { AttendInGroups<Shape>(args, shared); }),
      0, Shape::kThreads};
}

template <int... kDims>
void AddAttention(Kernels& to) {
  (AddMma<PrefillShape<kDims>>(to), ...);
  (AddMma<DecodeShape<kDims>>(to), ...);
  (AddMma<OverFp8<PrefillShape<kDims>>>(to), ...);
  (AddMma<OverFp8<DecodeShape<kDims>>>(to), ...);
}

Kernels MakeKernels() {
  Kernels to;
  AddTyped(to);
  AddProducts(to);
  AddBatch<2, 4, 8>(to);
  AddFp8(to);
  AddFused(to);
  AddAdapted(to);
  AddLowRank(to);
  AddAttention<64, 96, 128, 256>(to);
  AddWgmma<WgmmaShape<64>>(to);
  AddWgmma<WgmmaShape<128>>(to);
  to["Combine"] = {Bind<AttentionArgs, int>(
                       [](char*, const AttentionArgs& args, int queries) { CombineSplits(args, queries); }),
                   0, 128};
  to["Pack"] = {Bind<LatentArgs>([](char* shared, const LatentArgs& args) {
                  PackLatentTile(args, reinterpret_cast<LatentTile*>(shared));
                }),
                sizeof(LatentTile), kLatentThreads};
  to["Unpack"] = {Bind<LatentArgs>([](char* shared, const LatentArgs& args) {
                    UnpackLatentTile(args, reinterpret_cast<LatentTile*>(shared));
                  }),
                  sizeof(LatentTile), kLatentThreads};
  to["Sample"] = {Bind<SampleArgs>([](char* shared, const SampleArgs& args) {
                    SampleRowOf(args, reinterpret_cast<SampleShared*>(shared));
                  }),
                  sizeof(SampleShared), kSampleThreads};
  to["Dequantize"] = {Bind<TokenArgs, float*>([](char* shared, const TokenArgs& args, float* values) {
                        DequantizeToken(args, values, reinterpret_cast<float*>(shared));
                      }),
                      0, kTokenThreads};
  return to;
}

}  // namespace

const Kernel* FindKernel(const std::string& name) {
  static const Kernels kernels = MakeKernels();
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

uint64_t RunKernel(const Kernel& kernel, Extent grid, Extent block, size_t shared_bytes, uint64_t seed,
                   const Body& body) {
  const simt::Dim3 blocks{grid.x, grid.y, grid.z}, threads{block.x, block.y, block.z};
  if (kernel.alone) {
    simt::LaunchAlone(blocks, threads, body);
    return 0;
  }
  simt::Launch(blocks, threads, kernel.static_shared_bytes + shared_bytes, seed, body);
  return simt::AwaitCount();
}

}  // namespace aludel::cuda::fake
