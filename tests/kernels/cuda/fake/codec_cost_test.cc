#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/evaluate/compute_share.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

// What a handoff asks of a decode server's card, by frame, at the size of an 8B model: counted and not run.
namespace aludel::cuda::fake {
namespace {

constexpr int64_t kRows = 2048;  // a prefill server's chunk, and so a frame's tokens
constexpr int kRecomputed = 2;
constexpr int kBits = 4;

// The format that `aludel-bench make-codec` makes for a model of 32 layers; here one of its groups.
struct Group {
  AludelShape shape;
  int64_t width = 0;
};
Group GroupOf(const ModelConfig& real) {
  constexpr double kShare = 0.04;
  Group made;
  made.shape.recomputed_layers = kRecomputed;
  made.shape.packing = LatentPacking::kFixed;
  made.shape.groups = MakeGroups(real, kRecomputed, /*group_layers=*/0);
  const int64_t rank = AffordableRank(kShare, real, made.shape.groups, /*has_side=*/true) / 16 * 16;
  for (AludelGroup& group : made.shape.groups) group.rank = rank;
  made.width = AffordableWidth(kShare, real, made.shape);
  made.shape.groups.resize(1);
  return made;
}

struct CodecCost {
  int64_t launches = 0;
  int64_t bytes = 0;
  int64_t flops = 0;
  int64_t copies = 0;
  int64_t waits = 0;
};

CodecCost Counted(Device& device, Stream stream) {
  CodecCost cost;
  cost.waits = counts().waits;  // of what is counted, before the next line's own
  EXPECT_TRUE(device.Synchronize(stream).ok());
  const Counts counted = counts();
  cost.launches = counted.kernels();
  cost.copies = counted.copies;
  for (const auto& [kernel, launches] : counted.launches) {
    EXPECT_EQ(counted.costs.count(kernel), 1) << kernel << ": what it moves is not known";
    std::printf("  %-32s %3ld\n", kernel.c_str(), launches);
  }
  for (const auto& [kernel, one] : counted.costs) {
    cost.bytes += one.bytes;
    cost.flops += one.flops;
  }
  return cost;
}

TEST(CodecCosts, OfAnAludelFrameOfFourLayers) {
  CountOnly(true);
  constexpr Shape kLlama8b = {"llama-8b", 32, 4096, 14336, 32, 8, 128, 1024};
  const TemporaryDirectory files;
  Shape small = kLlama8b;
  small.layers = kRecomputed + 1 + 4;
  WriteZeros(small, files.path());
  TestModel model(files.path(), {.max_rows = kRows}, DType::kBf16, kRows);
  ModelConfig real = model.model().config();
  real.layers = kLlama8b.layers;
  const auto [shape, width] = GroupOf(real);
  const AludelGroup& group = shape.groups.front();
  ASSERT_EQ(group.layers, 4);
  const int64_t outputs = group.layers * 2 * real.kv_dim();
  AludelDecoderGroup weights;
  weights.grid = {0.1f, std::vector<int>(group.rank, kBits)};
  weights.bias.assign(outputs, 0.0f);
  weights.hidden = HostMatrix::Zeros(width, real.hidden + group.rank);
  weights.hidden_bias.assign(width, 0.0f);
  weights.out = HostMatrix::Zeros(outputs, width);
  const auto decoders =
      MakeAludelDecoders("aludel-p2", "", shape, {std::move(weights)}, model.model()).value();
  const auto decoder = decoders->NewDecoder().value();
  const std::vector<int32_t> prompt(kRows, 7);
  const KvTarget target{&model.model(), &model.pool(), model.table().ids(), prompt, kRows};
  Device& device = *model.device();

  std::printf("recomputed layers\n");
  ResetCounts();
  ASSERT_TRUE(decoder->Begin(target).ok());
  const CodecCost begin = Counted(device, model.model().stream());
  const std::vector<uint8_t> payload(PlaneBytes(std::vector<int>(group.rank, kBits), shape.packing, kRows));
  const FrameCoverage coverage{static_cast<uint16_t>(group.first_layer), 4, 0, 0, kRows};
  ASSERT_TRUE(decoder->Apply(coverage, payload, target).ok());
  ASSERT_TRUE(device.Synchronize(model.model().stream()).ok());
  std::printf("a frame of rank %ld through %ld\n", group.rank, width);
  ResetCounts();
  ASSERT_TRUE(decoder->Apply(coverage, payload, target).ok());
  const CodecCost frame = Counted(device, model.model().stream());
  CountOnly(false);

  // Latents, two products and what is between them, and the pages of each layer.
  EXPECT_LE(frame.launches, 4 + group.layers);
  EXPECT_EQ(frame.waits, 0);
  std::ifstream file("tests/gpu/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  const auto expect_row = [&](const char* what, const CodecCost& cost) {
    const std::string row = absl::StrFormat("| %s, now | %d | %.0f | %.0f | %d | %d |", what, cost.launches,
                                            static_cast<double>(cost.bytes) / 1e6,
                                            static_cast<double>(cost.flops) / 1e9, cost.copies, cost.waits);
    std::printf("%s\n", row.c_str());
    EXPECT_NE(readme.str().find(row), std::string::npos) << "the table of tests/gpu/README.md is another";
  };
  expect_row("a frame of four layers", frame);
  expect_row("two recomputed layers", begin);
}

}  // namespace
}  // namespace aludel::cuda::fake
