#include "tests/kernels/cuda/fake/fake_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device_health.h"
#include "kernels/device_options.h"
#include "kernels/open_device.h"
#include "kernels/ops.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/model/adapters/lora_weights.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/fake/kernel_name.h"
#include "tests/kernels/device_array.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Device> Open() { return OpenDevice({.name = "cuda:0"}).value(); }

TEST(KernelName, IsThatOfTheSource) {
  EXPECT_EQ(
      KernelName("void aludel::cuda::(anonymous namespace)::Rope<aludel::Bf16>(aludel::Bf16*, long, int)"),
      "Rope<Bf16>");
  EXPECT_EQ(KernelName("aludel::cuda::(anonymous namespace)::Pack(aludel::cuda::LatentArgs)"), "Pack");
  EXPECT_EQ(
      KernelName("void aludel::cuda::ScaledProduct<(aludel::WeightFormat)2, 1>(aludel::cuda::SkinnyArgs)"),
      "ScaledProduct<(WeightFormat)2, 1>");
}

// What a GPU would refuse, or worse.
TEST(FakeCudaDeathTest, WorkIsDoneInAnOrderThatTheHostHasNotAskedFor) {
  // A copy from memory that is written again before the stream is waited for would bring what it holds then.
  cudaStream_t stream;
  int *device, *host;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), sizeof(int)), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&host), sizeof(int)), cudaSuccess);
  EXPECT_DEATH(
      for (int i = 0; i < 200; ++i) {
        *host = 1;
        cudaMemcpyAsync(device, host, sizeof(int), cudaMemcpyHostToDevice, stream);
        *host = 2;
        cudaStreamSynchronize(stream);
      },
      "the host has written what a copy was still to read");
  EXPECT_DEATH(cudaMemcpyAsync(device, host, 2 * sizeof(int), cudaMemcpyHostToDevice, stream),
               "leaves an allocation");
  EXPECT_DEATH(cudaMemcpyAsync(host, device, sizeof(int), cudaMemcpyHostToDevice, stream),
               "kind is not that");
  EXPECT_DEATH(
      {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        cudaStreamSynchronize(stream);
      },
      "cudaStreamSynchronize while the thread captures");
  EXPECT_EXIT(
      {
        cudaFree(device);
        std::fprintf(stderr, "freed\n");
        *device = 1;
      },
      ::testing::KilledBySignal(SIGSEGV), "freed");
  cudaFree(device);
  cudaFreeHost(host);
  cudaStreamDestroy(stream);
  EXPECT_DEATH(cudaStreamSynchronize(stream), "a stream that is no more");
}

// What a step of a decoder asks of the driver; the demo model has eight layers.
TEST(FakeCuda, StepsOfTheDemoModel) {
  TestModel chat("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 256);
  const int layers = chat.model().config().layers;
  std::vector<int32_t> prompt(40);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7 % 500);
  const auto step = [&](absl::Span<const int32_t> ids) {
    ResetCounts();
    chat.Run(ids);
    return counts();
  };
  const Counts prefill = step(prompt);
  const Counts eager = step({5});
  const Counts captured = step({6});
  const Counts replayed = step({7});
  EXPECT_EQ(eager.graph_launches, 0);
  EXPECT_EQ(captured.captured, 1);
  EXPECT_EQ(replayed.graph_launches, 1);
  EXPECT_EQ(replayed.captured, 0);
  EXPECT_EQ(replayed.launches, eager.launches);
  // Arrays, the graph, and the logits' way back.
  EXPECT_LE(replayed.enqueued, 4);
  EXPECT_EQ(replayed.waits, 2);
  EXPECT_EQ(replayed.allocations, 0);
  // Embedding, angles, head (gather, norm, product), and so many for each layer: queries, keys and values; attention; its
  // output; gate and up; down.
  constexpr int kAround = 5, kPerLayer = 5;
  EXPECT_EQ(eager.kernels(), kAround + kPerLayer * layers);
  // Of 32 layers, with a token drawn.
  EXPECT_LE(kAround + kPerLayer * 32 + 1, 180);
  std::printf("%-14s %8s %8s %10s %8s %8s\n", "step", "kernels", "enqueued", "bytes", "waits", "a layer");
  const std::pair<const char*, const Counts*> rows[] = {
      {"prefill of 40", &prefill}, {"eager", &eager}, {"captured", &captured}, {"replayed", &replayed}};
  for (const auto& [name, counted] : rows) {
    std::printf("%-14s %8ld %8ld %10ld %8ld %8.1f\n", name, counted->kernels(), counted->enqueued,
                counted->copied_bytes, counted->waits,
                static_cast<double>(counted->kernels() - kAround) / layers);
  }
  for (const auto& [name, count] : eager.launches) std::printf("  %-44s %4ld\n", name.c_str(), count);
}

struct Watcher final : LayerObserver {
  absl::Status OnLayer(const LayerSlice&) override { return absl::OkStatus(); }
};

// What an observer wants to see between the operations keeps them apart.
TEST(FakeCuda, FusedLayersSayWhatTheirOperationsSay) {
  TestModel chat("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 256);
  std::vector<int32_t> prompt(20);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 13 % 500);
  for (const size_t rows : {1, 3, 8, 9}) {
    const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + rows);
    chat.Rewind(0);
    chat.Run(prompt);
    ResetCounts();
    const std::vector<float> fused = chat.Run(ids);
    EXPECT_EQ(counts().launches.count("NormQkv<Bf16>"), rows <= 8 ? 1 : 0);
    chat.Rewind(0);
    chat.Run(prompt);
    Watcher watcher;
    ResetCounts();
    const std::vector<float> apart = chat.Run(ids, &watcher);
    EXPECT_EQ(counts().launches.count("NormQkv<Bf16>"), 0);
    float largest = 0;
    for (const float logit : apart) largest = std::max(largest, std::fabs(logit));
    for (size_t i = 0; i < apart.size(); ++i) ASSERT_NEAR(fused[i], apart[i], 0.02f * largest) << rows;
  }
}

// What begins before the kernel in front of it has ended awaits that: the fake ends the process where one does not.
TEST(FakeCuda, KernelsThatBeginEarlyAwaitThoseBeforeThem) {
  std::vector<int32_t> prompt(20);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 13 % 500);
  for (const std::optional<WeightFormat> weights : {std::optional<WeightFormat>(), {WeightFormat::kInt8}}) {
    const auto logits = [&](bool early) {
      TestModel chat("deploy/demo/chat", {.weights = weights, .max_rows = 64}, DType::kBf16, 256,
                     {.dependent_launch = early});
      chat.Run(prompt);
      ResetCounts();
      std::vector<std::vector<float>> all;
      for (int32_t id = 5; id < 9; ++id) all.push_back(chat.Run(absl::MakeConstSpan(&id, 1)));
      // Of each step what is fused, decode attention, and products; the last two steps are graphs.
      const int64_t layers = chat.model().config().layers;
      EXPECT_GE(counts().early, early ? 4 * 5 * layers : 0);
      EXPECT_LE(counts().early, early ? counts().kernels() : 0);
      return all;
    };
    EXPECT_EQ(logits(true), logits(false));
  }
}

// Prefill, decode steps that are fused and those that are not, without an adapter and with one, all over one byte a number.
TEST(FakeCuda, ACacheOfFp8ServesAModel) {
  std::vector<int32_t> prompt(40);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 13 % 500);
  const std::vector<std::vector<int32_t>> steps = {prompt, {5}, {6}, {7, 8, 9}};
  TestModel chat("deploy/demo/chat", {.max_rows = 64}, DType::kFp8, 64);
  const auto cpu = OpenDevice({.name = "cpu", .threads = 1}).value();
  const auto reference = Transformer::Load(cpu.get(), "deploy/demo/chat", {.max_rows = 64}).value();
  const auto pool = BlockPool::Create(cpu.get(), reference->MakeKvLayout(4, 16, DType::kFp8)).value();
  BlockTable table;
  ASSERT_TRUE(table.Grow(*pool, 64).ok());
  const TemporaryDirectory files;
  const std::string directory = files.File("adapter");
  const LoraWeights::Base base{"deploy/demo/chat", chat.model().hash(), chat.model().config(), DType::kBf16};
  ASSERT_TRUE(MakeAdapter({.base = base.directory, .out = directory, .seed = 1, .strength = 0.5}).ok());
  const auto adapter = LoraWeights::Load(chat.device(), directory, base).value();
  const auto its_reference = LoraWeights::Load(cpu.get(), directory, base).value();
  for (const bool adapted : {false, true}) {
    ResetCounts();
    int64_t position = 0;
    for (const std::vector<int32_t>& ids : steps) {
      BatchItem wanted{ids, position, table.ids(), /*wants_logits=*/true}, item = wanted;
      item.blocks = chat.table().ids();
      if (adapted) wanted.adapter = its_reference.get(), item.adapter = adapter.get();
      position += static_cast<int64_t>(ids.size());
      std::vector<float> expected, found;
      ASSERT_TRUE(reference->Forward(absl::MakeSpan(&wanted, 1), *pool, &expected).ok());
      ASSERT_TRUE(chat.model().Forward(absl::MakeSpan(&item, 1), chat.pool(), &found).ok());
      float largest = 0;
      for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
      // A number that bf16 rounds the other way may go to the next one of FP8.
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 0.1f * largest);
    }
    int64_t over_fp8 = 0;
    for (const auto& [kernel, launches] : counts().launches) {
      if (kernel.rfind("MmaAttention<OverFp8<", 0) == 0) over_fp8 += launches;
      EXPECT_NE(kernel.rfind("WgmmaAttention", 0), 0) << kernel;
      EXPECT_NE(kernel.rfind("MmaAttention<MmaShape", 0), 0) << kernel;
    }
    EXPECT_EQ(over_fp8, static_cast<int64_t>(steps.size()) * chat.model().config().layers);
    EXPECT_GT(counts().launches[adapted ? "AdaptedQkv<Fp8>" : "NormQkv<Fp8>"], 0);
  }
}

// Which block takes a piece of prefill attention's work, and behind which other, is nothing that its result tells.
TEST(FakeCuda, BlocksThatTakeAllPiecesSayWhatABlockForEachSays) {
  std::mt19937_64 random(std::random_device{}());
  const AttentionProblem problem({4, 2, 64, 16, 0, {{70, 90}, {150, 0}}}, random);
  const auto attend = [&](bool persistent) {
    const auto device = OpenDevice({.name = "cuda:0", .persistent_attention = persistent}).value();
    const DeviceArray<Bf16> k(*device, problem.k), v(*device, problem.v);
    const DeviceArray<float> q(*device, problem.q);
    const DeviceArray<float> out(*device, std::vector<float>(problem.rows * problem.out_stride));
    const PagedKv kv{k.data(),           v.data(),          DType::kBf16, problem.c.block_tokens,
                     problem.c.kv_heads, problem.c.head_dim};
    ResetCounts();
    device->ops().Attention({q.data(), DType::kF32, problem.rows, problem.q_dim(), problem.q_stride},
                            problem.params, problem.sequences, kv,
                            {out.data(), DType::kF32, problem.rows, problem.q_dim(), problem.out_stride}, {});
    const std::vector<float> found = out.Read().value();
    EXPECT_EQ(counts().launches["WgmmaAttention<WgmmaShape<64>>"], 1);
    return found;
  };
  EXPECT_EQ(attend(true), attend(false));
}

// What `engine { weights }` asks for is served on a GPU, too: products of few rows read it as it is stored.
TEST(FakeCuda, WeightsWithScalesServeAModel) {
  const std::vector<int32_t> prompt = {3,  141, 59, 26,  5,  35, 89, 79, 32,
                                       38, 46,  26, 433, 83, 27, 95, 28, 84};
  TestModel whole("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 64);
  whole.Run(prompt);
  const std::vector<float> expected = whole.Run({5});
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
  for (const auto& [format, share] :
       {std::pair(WeightFormat::kInt8, 0.05f), std::pair(WeightFormat::kInt4, 0.5f)}) {
    TestModel scaled("deploy/demo/chat", {.weights = format, .max_rows = 64}, DType::kBf16, 64);
    scaled.Run(prompt);
    ResetCounts();
    const std::vector<float> found = scaled.Run({5});
    const std::string product =
        "ScaledProduct<(WeightFormat)" + std::to_string(static_cast<int>(format)) + ", 1>";
    // Queries, keys with values, output, gate with up, down; and the head.
    EXPECT_EQ(counts().launches[product], 5 * scaled.model().config().layers + 1);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], share * largest);
  }
}

// However many adapters its rows have: each product adds what they add, up to eight rows. More take two launches more for each.
TEST(FakeCuda, AdaptersOfASmallStepAreNoLaunchMore) {
  TestModel chat("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 64);
  const TemporaryDirectory files;
  const LoraWeights::Base base{"deploy/demo/chat", chat.model().hash(), chat.model().config(), DType::kBf16};
  std::vector<std::unique_ptr<LoraWeights>> adapters;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::string directory = files.File(std::to_string(seed));
    ASSERT_TRUE(MakeAdapter({.base = base.directory, .out = directory, .seed = seed, .strength = 0.5}).ok());
    adapters.push_back(LoraWeights::Load(chat.device(), directory, base).value());
  }
  struct Watcher final : LayerObserver {
    absl::Status OnLayer(const LayerSlice&) override { return absl::OkStatus(); }
  } watcher;
  const std::vector<int32_t> id = {5};
  const int64_t vocab = chat.model().config().vocab, layers = chat.model().config().layers;
  std::vector<float> logits;
  // Row i is at position first + i of one sequence.
  const auto step = [&](const std::vector<const LoraWeights*>& of, bool watched = false, int64_t first = 0) {
    std::vector<BatchItem> items(of.size());
    for (size_t i = 0; i < of.size(); ++i) {
      items[i].ids = id;
      items[i].position = first + static_cast<int64_t>(i);
      items[i].blocks = chat.table().ids();
      items[i].wants_logits = true;
      items[i].adapter = of[i];
      items[i].observer = watched ? &watcher : nullptr;
    }
    ResetCounts();
    EXPECT_TRUE(chat.model().Forward(absl::MakeSpan(items), chat.pool(), &logits).ok());
    return counts();
  };
  step({nullptr});
  const LoraWeights* const a = adapters[0].get();
  const std::vector<const LoraWeights*> rows = {a, adapters[1].get(), nullptr, adapters[2].get()};
  const Counts none = step({nullptr, nullptr, nullptr, nullptr});
  const std::vector<float> of_base = logits;
  const Counts one = step({nullptr, a, nullptr, nullptr});
  const Counts mixed = step(rows);
  const std::vector<float> of_mixed = logits;
  EXPECT_EQ(one.launches, mixed.launches);
  EXPECT_EQ(mixed.kernels(), none.kernels());
  EXPECT_LE(mixed.copies, none.copies);  // whose tables are remembered
  EXPECT_EQ(mixed.allocations, 0);
  EXPECT_EQ(mixed.waits, none.waits);
  EXPECT_EQ(mixed.launches.at("AdaptedQkv<Bf16>"), layers);
  EXPECT_EQ(mixed.launches.at("AdaptedProduct"), 2 * layers);
  EXPECT_EQ(mixed.launches.at("AdaptedGateUp"), layers);
  const auto differs = [&](const std::vector<float>& one, const std::vector<float>& other) {
    float most = 0;
    for (size_t i = 0; i < one.size(); ++i) most = std::max(most, std::fabs(one[i] - other[i]));
    return most;
  };
  float largest = 0;
  for (const float logit : of_base) largest = std::max(largest, std::fabs(logit));
  EXPECT_GT(differs(of_mixed, of_base), 0.1f * largest);
  // Here each operation stands for itself, but for the products.
  const Counts watched = step(rows, /*watched=*/true);
  EXPECT_LT(differs(of_mixed, logits), 0.03f * largest);
  constexpr int kAround = 4, kPerLayer = 11;
  EXPECT_EQ(watched.kernels(), kAround + kPerLayer * layers);
  EXPECT_EQ(watched.launches.at("AdaptedProduct"), 5 * layers);
  // The last row reads what the first three have written, and is the same bits without them.
  step(rows);
  step({rows[3]}, /*watched=*/false, /*first=*/3);
  EXPECT_EQ(logits, std::vector<float>(of_mixed.end() - vocab, of_mixed.end()));

  const Counts more = step(std::vector<const LoraWeights*>(9, a));
  constexpr int kProducts = 5;  // queries, keys with values, outputs, gate with up, down
  EXPECT_EQ(more.launches.at("Shrink<Bf16, true>"), kProducts * layers);
  EXPECT_EQ(more.launches.at("Expand<Bf16, float>") + more.launches.at("Expand<Bf16, Bf16>"),
            kProducts * layers);
}

// A step with more sequences than logits have room for at first makes room, and no graph goes on with what was there. Where
// there is no memory for that, the step fails, and others go on with the room that they have.
TEST(FakeCuda, LogitsTakeRoomForTheSequencesOfAStep) {
  TestModel chat("deploy/demo/chat", {.max_rows = 128}, DType::kBf16, 64);
  const int64_t vocab = chat.model().config().vocab;
  ModelConfig wide = chat.model().config();
  wide.vocab = 150000;
  const TransformerOptions options{.max_rows = 4096};
  EXPECT_EQ(Transformer::WorkspaceBytes(wide, options) -
                Transformer::WorkspaceBytes(chat.model().config(), options),
            64 * (wide.vocab - vocab) * sizeof(float));
  chat.Run({1, 2, 3, 4});
  absl::Status status;
  const auto step = [&](int sequences) {
    const int32_t id = 5;
    std::vector<BatchItem> items(sequences);
    for (BatchItem& item : items) {
      item.ids = absl::MakeConstSpan(&id, 1);
      item.position = 4;
      item.blocks = chat.table().ids();
      item.wants_logits = true;
    }
    std::vector<float> logits;
    status = chat.model().Forward(absl::MakeSpan(items), chat.pool(), &logits);
    EXPECT_EQ(static_cast<int64_t>(logits.size()), sequences * vocab);
    return logits;
  };
  const std::vector<float> before = step(2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(2), before);
  FailAllocationsAbove(70 * vocab * sizeof(float));
  step(70);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  Heal();
  EXPECT_EQ(step(2), before);
  const std::vector<float> many = step(70);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::vector<float>(many.begin(), many.begin() + vocab),
            std::vector<float>(many.end() - vocab, many.end()));
  EXPECT_EQ(step(2), before);
}

TEST(FakeCuda, TheCacheTakesWhatTheDeviceHasFree) {
  TestModel chat("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 64);
  const auto tokenizer = Tokenizer::Load("deploy/demo/chat").value();
  chat.device()->ReleaseFreed();
  const int64_t free = FreeDeviceMemory("cuda:0").value();
  const auto engine =
      Engine::Start(&chat.model(), tokenizer.get(), {.max_num_batched_tokens = 64, .max_num_seqs = 16384})
          .value();
  const EngineOptions& options = engine->options();
  const KvLayout one = chat.model().MakeKvLayout(1, options.block_tokens, options.kv_dtype);
  const int64_t blocks = options.kv_blocks + BlockPool::PaddingBlocks(chat.device());
  const int64_t bytes = blocks * static_cast<int64_t>(one.total_bytes());
  EXPECT_GT(bytes, free / 10 * 7);
  EXPECT_LE(bytes, free / 10 * 8);
}

TEST(FakeCuda, NoFrameOfAHandoffAllocates) {
  TestModel chat("deploy/demo/chat", {.compute = DType::kF32, .max_rows = 16}, DType::kBf16, 64);
  const auto encoders = OpenEncoders("int8", "", chat.model()).value();
  const auto decoders = OpenDecoders("int8", "", chat.model()).value();
  const int64_t width = chat.model().config().kv_dim();
  const DeviceArray<float> k(*chat.device(), std::vector<float>(2 * width, 0.5f));
  FrameStore store(encoders->spec());
  LayerSlice slice;
  slice.layer = 7;  // the last one waits for no other
  slice.token_begin = 4;
  slice.k = slice.v = k.View(2, width);
  ASSERT_TRUE(encoders->NewEncoder().value()->Encode(slice, store).ok());
  const std::vector<uint8_t>& payload = store.frames().at(0).payload;
  const std::vector<int32_t> prompt(20, 7);
  const KvTarget target{&chat.model(), &chat.pool(), chat.table().ids(), prompt, 19};
  const auto decoder = decoders->NewDecoder().value();
  ResetCounts();
  for (uint16_t layer = 0; layer < 4; ++layer)
    ASSERT_TRUE(decoder->Apply({layer, 1, 0, 4, 2}, payload, target).ok());
  EXPECT_EQ(counts().allocations, 0);
  EXPECT_TRUE(chat.device()->Synchronize(chat.model().stream()).ok());
}

// The last test: what is lost stays lost.
TEST(LostDevice, IsReportedByTheCallAndByTheProcess) {
  const auto device = Open();
  const DeviceArray<float> x(*device, std::vector<float>(64, 1.0f)), out(*device, std::vector<float>(64));
  EXPECT_TRUE(LostDevice().ok());
  FailAtLaunch(1, cudaErrorIllegalAddress);
  for (int i = 0; i < 3; ++i) {
    device->ops().Silu(TensorView::Of(x.data(), 1, 64), TensorView::Of(out.data(), 1, 64), Stream{});
  }
  const absl::Status failed = device->Synchronize(Stream{});
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("illegal memory access"));
  EXPECT_THAT(std::string(LostDevice().message()), HasSubstr("cuda:0: launch Silu"));
  EXPECT_FALSE(device->Synchronize(Stream{}).ok());
  EXPECT_FALSE(device->Allocate(1).ok());
}

}  // namespace
}  // namespace aludel::cuda::fake
