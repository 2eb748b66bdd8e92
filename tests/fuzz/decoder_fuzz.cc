// Frames of every payload kind, one handoff after another, into decoders of a tiny model. The checksum is
// taken as passed: what a decoder accepts must leave the process alive, and its pages finite where codes are.
//   build/fuzz/bin/decoder_fuzz NEW_CORPUS tests/fuzz/seeds/decoder -max_total_time=600 [--codec=lossless]
// --codec: that one alone, whatever byte 0 says; an unknown name lists all.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/open_device.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/codec/scd/reconstruct.h"
#include "runtime/codec/video/hevc.h"

namespace {

using namespace aludel;

constexpr int64_t kTokens = 24;
constexpr int kPlanes = 4;  // of embedded codes
constexpr char kModel[] = "tests/runtime/model/golden/tiny/llama_tied";

HostMatrix Small(int64_t rows, int64_t cols) {
  HostMatrix matrix = HostMatrix::Zeros(rows, cols);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    matrix.values[i] = 0.01f * static_cast<float>(i % 17) - 0.08f;
  }
  return matrix;
}

ScdDecoderWeights ScdWeights(const ModelConfig& config) {
  ScdDecoderWeights layers(config.layers);
  for (int i = 0; i < config.layers; ++i) {
    layers[i].mode = i % 2 == 0 ? ScdMode::kReuse : ScdMode::kPatch;
    layers[i].k = Small(config.kv_dim(), 3);
    layers[i].v = Small(config.kv_dim(), 5);
    layers[i].aligner = {Small(config.hidden, 4), std::vector<float>(config.hidden), Small(16, 4),
                         std::vector<float>(16), Small(config.hidden, 8)};
  }
  return layers;
}

std::unique_ptr<DecoderFactory> Aludel(std::string name, LatentPacking packing, int recomputed_layers,
                                       const Transformer& model, int planes = 0, int base_planes = 0) {
  const ModelConfig& config = model.config();
  AludelShape shape;
  shape.recomputed_layers = recomputed_layers;
  shape.head_tokens = 2;
  shape.packing = packing;
  shape.planes = planes;
  shape.range = {{1, {16}}};  // codes are counted, and never too many or too large
  shape.groups = {{recomputed_layers + 1, config.layers - recomputed_layers - 1, 6}};
  const int64_t side = shape.has_side() ? config.hidden : 0;
  const int64_t outputs = shape.groups[0].layers * 2 * config.kv_dim();
  AludelDecoderGroup group;
  group.grid = {0.1f, {1, 2, 4, 8, 12, 16}, {0.1f, 0.3f, 0.7f, 0.9f, 0.99f, 0.999f}, kPlanes};
  group.linear = Small(outputs, side + 6);
  group.bias.resize(outputs);
  return MakeAludelDecoders(std::move(name), "", shape, {group}, model, base_planes).value();
}

struct Fixture {
  std::unique_ptr<Device> device = OpenDevice({.name = "cpu", .threads = 1}).value();
  std::unique_ptr<Transformer> model;
  std::unique_ptr<BlockPool> pool;
  BlockTable table;
  std::vector<int32_t> prompt;
  std::vector<std::unique_ptr<DecoderFactory>> codecs;

  Fixture() {
    auto loaded = Transformer::Load(device.get(), kModel, {.compute = DType::kF32, .max_rows = 16});
    if (!loaded.ok()) {
      std::fprintf(stderr, "run from the repository root: %s\n", loaded.status().ToString().c_str());
      std::exit(1);
    }
    model = *std::move(loaded);
    pool = BlockPool::Create(device.get(), model->MakeKvLayout(2, 16, DType::kBf16)).value();
    if (!table.Grow(*pool, kTokens + 1).ok()) std::abort();
    for (int i = 0; i <= kTokens; ++i) prompt.push_back(3 + i);
    for (const char* name :
         {"raw", "lossless", "int8", "int4", "recompute-0-0", "recompute-1-1", "recompute-0-1"}) {
      codecs.push_back(OpenDecoders(name, "", *model).value());
    }
    codecs.push_back(MakeScdDecoders("scd", "", ScdWeights(model->config()), *model).value());
    codecs.push_back(Aludel("fixed", LatentPacking::kFixed, -1, *model));
    codecs.push_back(Aludel("deflate", LatentPacking::kDeflate, -1, *model));
    codecs.push_back(Aludel("deflate-p0", LatentPacking::kDeflate, 0, *model));
    codecs.push_back(Aludel("rans", LatentPacking::kRans, -1, *model));
    codecs.push_back(Aludel("embedded", LatentPacking::kEmbedded, -1, *model));
    codecs.push_back(Aludel("embedded@1", LatentPacking::kEmbedded, -1, *model, /*planes=*/1));
    codecs.push_back(Aludel("embedded@1+", LatentPacking::kEmbedded, -1, *model, /*planes=*/0,
                            /*base_planes=*/1));
    // Last: a build, or a machine, without libavcodec does without.
    if (LoadHevcDecoder().ok()) codecs.push_back(Aludel("video", LatentPacking::kVideo, -1, *model));
  }
};

const Fixture& TheFixture() {
  static auto* const kFixture = new Fixture;
  return *kFixture;
}

// The codec of all inputs; null: byte 0 picks it.
const DecoderFactory* only = nullptr;

void PickCodec(absl::string_view name) {
  for (const auto& codec : TheFixture().codecs) {
    if (codec->spec().name == name) only = codec.get();
  }
  if (only != nullptr) return;
  std::fprintf(stderr, "--codec names none of this build; there are");
  for (const auto& codec : TheFixture().codecs) std::fprintf(stderr, " %s", codec->spec().name.c_str());
  std::fprintf(stderr, "\n");
  std::exit(1);
}

}  // namespace

// libFuzzer leaves flags of two dashes to the target.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    absl::string_view flag = (*argv)[i];
    if (absl::ConsumePrefix(&flag, "--codec=")) PickCodec(flag);
  }
  return 0;
}

// Byte 0 picks the codec; then frames: first layer, layers, plane and how long the payload shall be, token
// begin, tokens, payload length (two bytes), payload.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const Fixture& fixture = TheFixture();
  if (size == 0) return 0;
  const DecoderFactory& codec = only != nullptr ? *only : *fixture.codecs[bytes[0] % fixture.codecs.size()];
  absl::Span<const uint8_t> rest(bytes + 1, size - 1);
  const KvTarget target{fixture.model.get(),
                        fixture.pool.get(),
                        fixture.table.ids(),
                        fixture.prompt,
                        kTokens,
                        codec.spec().recomputed_head_tokens};
  const auto decoder = codec.NewDecoder();
  if (!decoder.ok() || !BeginHandoff(**decoder, target).ok()) std::abort();
  for (int frames = 0; rest.size() >= 7 && frames < 16; ++frames) {
    const FrameCoverage coverage{rest[0], rest[1], static_cast<uint16_t>(rest[2] >> 4), rest[3], rest[4]};
    const bool fits = (rest[2] & 1) != 0;
    const size_t length = std::min<size_t>(rest[5] | rest[6] << 8, rest.size() - 7);
    std::vector<uint8_t> payload(rest.begin() + 7, rest.begin() + 7 + static_cast<int64_t>(length));
    // Most random lengths are wrong ones: half of the frames get one that is right for some codecs.
    if (fits) payload.resize(codec.spec().max_frame_bytes(coverage.tokens), rest[6]);
    rest.remove_prefix(7 + length);
    (*decoder)->Apply(coverage, payload, target).IgnoreError();
  }
  return 0;
}
