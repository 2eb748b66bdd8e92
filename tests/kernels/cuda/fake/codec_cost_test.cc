#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/evaluate/compute_share.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/work_cost.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

// What a handoff asks of the cards of both servers, at the size of an 8B model, beside prefill: counted and not run.
namespace aludel::cuda::fake {
namespace {

constexpr Shape kLlama8b = {"llama-8b", 32, 4096, 14336, 32, 8, 128, 1024};
constexpr int64_t kRows = 2048;  // a prefill server's chunk, and so a frame's tokens
constexpr int kRecomputed = 2;
constexpr int kGroupLayers = 4;
constexpr int kBits = 4;

// The format that `aludel-bench make-codec` makes for a model of 32 layers, over one of fewer.
struct Format {
  AludelShape shape;
  int64_t width = 0;
};
Format FormatOf(const ModelConfig& config) {
  constexpr double kShare = 0.04;
  ModelConfig real = config;
  real.layers = kLlama8b.layers;
  AludelShape whole;
  whole.recomputed_layers = kRecomputed;
  whole.groups = MakeGroups(real, kRecomputed, /*group_layers=*/0);
  EXPECT_EQ(whole.groups.front().layers, kGroupLayers);
  const int64_t rank = AffordableRank(kShare, real, whole.groups, /*has_side=*/true) / 16 * 16;
  for (AludelGroup& group : whole.groups) group.rank = rank;
  Format made{whole, AffordableWidth(kShare, real, whole)};
  made.shape.packing = LatentPacking::kFixed;
  made.shape.groups = MakeGroups(config, kRecomputed, kGroupLayers);
  for (AludelGroup& group : made.shape.groups) group.rank = rank;
  return made;
}

LatentGrid GridOf(const AludelGroup& group) { return {0.1f, std::vector<int>(group.rank, kBits)}; }

AludelEncoderWeights EncoderOf(const Format& format, const ModelConfig& config) {
  AludelEncoderWeights weights;
  for (const AludelGroup& group : format.shape.groups) {
    weights.push_back({HostMatrix::Zeros(group.rank, group.layers * 2 * config.kv_dim()),
                       HostMatrix::Zeros(group.rank, config.hidden), std::vector<float>(group.rank),
                       GridOf(group)});
  }
  return weights;
}

AludelDecoderWeights DecoderOf(const Format& format, const ModelConfig& config) {
  AludelDecoderWeights weights;
  for (const AludelGroup& group : format.shape.groups) {
    const int64_t outputs = group.layers * 2 * config.kv_dim();
    AludelDecoderGroup made;
    made.grid = GridOf(group);
    made.bias.assign(outputs, 0.0f);
    made.hidden = HostMatrix::Zeros(format.width, config.hidden + group.rank);
    made.hidden_bias.assign(format.width, 0.0f);
    made.out = HostMatrix::Zeros(outputs, format.width);
    weights.groups.push_back(std::move(made));
  }
  return weights;
}

// A model of some layers of kLlama8b's, both sides of the format over it, and what `run` asks of the card.
class CodecCosts : public ::testing::Test {
 protected:
  CodecCosts() { CountOnly(true); }
  ~CodecCosts() override { CountOnly(false); }

  struct Handoff {
    Handoff(int64_t layers, int64_t tokens)
        : model(Written(layers), {.max_rows = kRows}, DType::kBf16, tokens),
          pages(BlockPool::Create(model.device(), model.model().MakeKvLayout(tokens / 16, 16, DType::kBf16))
                    .value()),
          format(FormatOf(model.model().config())),
          prompt(tokens, 7) {}

    std::string Written(int64_t layers) const {
      Shape shape = kLlama8b;
      shape.layers = layers;
      WriteZeros(shape, files.path());
      return files.path();
    }
    // Of the first tokens.
    KvTarget target(int64_t tokens) {
      const auto blocks = absl::MakeConstSpan(model.table().ids()).first(tokens / 16);
      return {&model.model(), &model.pool(), blocks, absl::MakeConstSpan(prompt).first(tokens), tokens};
    }

    const TemporaryDirectory files;
    TestModel model;
    const std::unique_ptr<BlockPool> pages;  // of the server that encodes
    const Format format;
    const std::vector<int32_t> prompt;
  };

  template <typename Run>
  static WorkCost Cost(Handoff& of, const Run& run) {
    ResetCounts();
    const absl::Status status = run();
    EXPECT_TRUE(status.ok()) << status;
    const int64_t waits = counts().waits;  // before the next line's own
    EXPECT_TRUE(of.model.device()->Synchronize(of.model.model().stream()).ok());
    WorkCost cost = CountedWork();
    cost.waits = waits;
    return cost;
  }
};

TEST_F(CodecCosts, OfAFrameOfFourLayers) {
  Handoff handoff(kRecomputed + 1 + kGroupLayers, kRows);
  const AludelGroup& group = handoff.format.shape.groups.front();
  const auto decoders =
      MakeAludelDecoders("aludel-p2", "", handoff.format.shape,
                         DecoderOf(handoff.format, handoff.model.model().config()), handoff.model.model())
          .value();
  const auto decoder = decoders->NewDecoder().value();
  const KvTarget target = handoff.target(kRows);
  const WorkCost begin = Cost(handoff, [&] { return decoder->Begin(target); });
  const std::vector<uint8_t> payload(PlaneBytes(GridOf(group).bits, LatentPacking::kFixed, kRows));
  const FrameCoverage coverage{static_cast<uint16_t>(group.first_layer), kGroupLayers, 0, 0, kRows};
  const auto apply = [&] { return decoder->Apply(coverage, payload, target); };
  Cost(handoff, apply);  // what a first one alone asks for
  const WorkCost frame = Cost(handoff, apply);

  // Latents, two products and what is between them, and the pages of all layers.
  EXPECT_LE(frame.launches, 5);
  EXPECT_EQ(frame.waits, 0);
  const auto expect_row = [&](const char* what, const WorkCost& cost) {
    ExpectInReadme(absl::StrFormat("| %s, now | %d | %.0f | %.0f | %d | %d |", what, cost.launches,
                                   static_cast<double>(cost.bytes) / 1e6,
                                   static_cast<double>(cost.flops) / 1e9, cost.copies, cost.waits));
  };
  expect_row("a frame of four layers", frame);
  expect_row("two recomputed layers", begin);
}

// What a handoff of a prompt asks of both cards beside its prefill.
struct HandoffCost {
  WorkCost prefill, encode, recompute, reconstruct;

  HandoffCost operator+(const HandoffCost& other) const {
    return {prefill + other.prefill, encode + other.encode, recompute + other.recompute,
            reconstruct + other.reconstruct};
  }
  HandoffCost operator*(int64_t times) const {
    return {prefill * times, encode * times, recompute * times, reconstruct * times};
  }
};

class PromptCosts : public CodecCosts {
 protected:
  static constexpr int64_t kTokens[] = {1024, 4096};
  using ByTokens = std::map<int64_t, HandoffCost>;

  static ByTokens CostsOf(int64_t layers) {
    Handoff handoff(layers, kTokens[1]);
    Transformer& model = handoff.model.model();
    const auto encoders = MakeAludelEncoders("aludel-p2", "", handoff.format.shape,
                                             EncoderOf(handoff.format, model.config()), model)
                              .value();
    const auto decoders = MakeAludelDecoders("aludel-p2", "", handoff.format.shape,
                                             DecoderOf(handoff.format, model.config()), model)
                              .value();
    ByTokens costs;
    for (const int64_t tokens : kTokens) {
      FrameStore frames(encoders->spec());
      const EncodeTask task{encoders.get(), &frames};
      const auto prefill = [&](absl::Span<const EncodeTask> tasks) {
        return EncodePrompt(model, *handoff.pages, handoff.prompt, tokens, tasks);
      };
      HandoffCost& cost = costs[tokens];
      cost.prefill = Cost(handoff, [&] { return prefill({}); });
      cost.encode = Cost(handoff, [&] { return prefill(absl::MakeConstSpan(&task, 1)); }) - cost.prefill;
      const KvTarget target = handoff.target(tokens);
      const auto decoder = decoders->NewDecoder().value();
      cost.recompute = Cost(handoff, [&] { return decoder->Begin(target); });
      cost.reconstruct = Cost(handoff, [&] {
        absl::Status status;
        for (const WireFrame& frame : frames.frames()) {
          status.Update(decoder->Apply(DecodeFrameHeader(frame.header)->coverage, frame.payload, target));
        }
        return status;
      });
    }
    return costs;
  }

  // Of all 32 layers: groups of four from layer 3 on, and one of the last layer alone.
  static ByTokens CostsOfAll() {
    constexpr int64_t kLeast = kRecomputed + 1 + kGroupLayers + 1;
    const ByTokens least = CostsOf(kLeast), more = CostsOf(kLeast + kGroupLayers);
    ByTokens all;
    for (const auto& [tokens, cost] : least) {
      all[tokens] = cost + (more.at(tokens) + cost * -1) * ((kLlama8b.layers - kLeast) / kGroupLayers);
    }
    return all;
  }
};

// Where each launch leaves the card idle for so long.
double Milliseconds(const WorkCost& cost, double idle_us) {
  return (cost.kernels_us + static_cast<double>(cost.launches) * idle_us) / 1e3;
}

TEST_F(PromptCosts, EncodingAndReconstructionBesidePrefill) {
  for (const auto& [tokens, cost] : CostsOfAll()) {
    const auto expect_row = [tokens = tokens](const char* what, const WorkCost& of) {
      ExpectInReadme(absl::StrFormat("| %d | %s | %d | %.2f | %.2f | %.2f | %.2f |", tokens, what,
                                     of.launches, static_cast<double>(of.bytes) / 1e9,
                                     static_cast<double>(of.flops) / 1e12, Milliseconds(of, 0),
                                     Milliseconds(of, 3)));
    };
    expect_row("prefill", cost.prefill);
    expect_row("encoding", cost.encode);
    expect_row("reconstruction", cost.reconstruct);
    expect_row("two recomputed layers", cost.recompute);
    const WorkCost codec = cost.encode + cost.reconstruct;
    const auto share = [&, &cost = cost](const auto& figure) {
      return static_cast<double>(figure(codec)) / static_cast<double>(figure(cost.prefill));
    };
    const double launches = share([](const WorkCost& of) { return of.launches; });
    const double bytes = share([](const WorkCost& of) { return of.bytes; });
    const double flops = share([](const WorkCost& of) { return of.flops; });
    const double time = share([](const WorkCost& of) { return Milliseconds(of, 0); });
    const double with_idle = share([](const WorkCost& of) { return Milliseconds(of, 3); });
    ExpectInReadme(
        absl::StrFormat("| %d | encoding and reconstruction, of prefill | %.3f | %.3f | %.3f | %.3f | %.3f |",
                        tokens, launches, bytes, flops, time, with_idle));
    // The goal is .05 of prefill, whose time is that of its operations. Of bytes and launches, of which prefill has few for its time,
    // the codec has more.
    EXPECT_LE(flops, 0.04);
    EXPECT_LE(time, 0.05);
    EXPECT_LE(bytes, 0.062);
    EXPECT_LE(launches, 0.17);
    EXPECT_LE(with_idle, 0.05);
  }
}

}  // namespace
}  // namespace aludel::cuda::fake
