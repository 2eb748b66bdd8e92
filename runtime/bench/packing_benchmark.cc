#include "runtime/bench/packing_benchmark.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/latents.h"
#include "runtime/calibrate/aludel/fit_decays.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/low_bits.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/evaluate/score.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Frame {
  size_t group = 0;
  int64_t tokens = 0;
  std::vector<float> z;         // [tokens, rank]
  std::vector<uint8_t> planes;  // of whole bytes
};

// How often symbols come, and the bits below them.
class Entropy {
 public:
  explicit Entropy(const std::vector<int>& bits) : bits_(bits), counts_(bits.size()) {}

  void Add(const Frame& frame) {
    std::vector<uint8_t> low(LowBitBytes(bits_, frame.tokens));
    low_bytes_ += static_cast<double>(low.size());
    const std::vector<uint8_t> symbols = SplitLowBits(frame.planes, bits_, frame.tokens, low.data());
    for (size_t i = 0; i < symbols.size(); ++i) ++counts_[i / frame.tokens][symbols[i]];
  }
  double Bytes() const {
    double bits = 0;
    for (const auto& counts : counts_) {
      double all = 0;
      for (const double count : counts) all += count;
      for (const double count : counts) bits -= count > 0 ? count * std::log2(count / all) : 0;
    }
    return low_bytes_ + bits / 8;
  }

 private:
  const std::vector<int> bits_;
  std::vector<std::array<double, 256>> counts_;
  double low_bytes_ = 0;
};

class Benchmark {
 public:
  Benchmark(const PackingBenchmarkOptions& options, Device* device) : options_(options), device_(device) {}

  absl::StatusOr<PackingBenchmark> Run(const std::function<bool(int64_t, int64_t)>& progress) {
    ALUDEL_RETURN_IF_ERROR(MakeFrames());
    FitMissingDecays();
    std::vector<LatentPacking> packings = {LatentPacking::kFixed, LatentPacking::kDeflate,
                                           LatentPacking::kRans};
    if (LoadHevcEncoder().ok() && LoadHevcDecoder().ok()) packings.push_back(LatentPacking::kVideo);
    const auto total = static_cast<int64_t>(packings.size()) * options_.repeats;
    std::vector<std::vector<double>> encode(packings.size()), decode(packings.size());
    for (int64_t pass = 0; pass < total; ++pass) {
      if (!progress(pass, total)) return absl::CancelledError("the benchmark was interrupted");
      const size_t at = pass % packings.size();
      if (pass < static_cast<int64_t>(packings.size())) result_.packings.push_back({Name(packings[at])});
      double seconds[2] = {};
      ALUDEL_RETURN_IF_ERROR(Pass(packings[at], &result_.packings[at], seconds));
      encode[at].push_back(seconds[0] / static_cast<double>(result_.tokens));
      decode[at].push_back(seconds[1] / static_cast<double>(result_.tokens));
    }
    progress(total, total);
    for (size_t i = 0; i < packings.size(); ++i) {
      result_.packings[i].encode_seconds = Percentile(std::move(encode[i]), 0.5);
      result_.packings[i].decode_seconds = Percentile(std::move(decode[i]), 0.5);
    }
    return result_;
  }

 private:
  absl::Status MakeFrames() {
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(options_.codec));
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* const format, manifest.Find(options_.format));
    if (format->kind != ArtifactKind::kAludel) {
      return absl::InvalidArgumentError(absl::StrCat("format \"", options_.format, "\" has no packing"));
    }
    ALUDEL_ASSIGN_OR_RETURN(const auto producer,
                            LoadForCalibration(options_.model, device_, options_.model.producer));
    ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, producer->hash()));
    const ModelConfig& config = producer->config();
    ALUDEL_ASSIGN_OR_RETURN(const AludelEncoderWeights weights,
                            LoadAludelEncoder(manifest, *format, config.kv_dim(), config.hidden));
    for (const AludelEncoderGroup& group : weights) grids_.push_back(group.grid);
    // Codes as they are, whatever the format does with them.
    AludelShape plain = format->aludel;
    plain.packing = LatentPacking::kFixed;
    ALUDEL_ASSIGN_OR_RETURN(const auto codec, MakeAludelEncoders("plain", "", plain, weights, *producer));
    ALUDEL_ASSIGN_OR_RETURN(const auto prompts,
                            LoadPrompts(options_.model, options_.model.data, options_.model.prompts, config));
    size_t longest = 0;
    for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
    constexpr int kBlockTokens = 16;
    ALUDEL_ASSIGN_OR_RETURN(
        const auto pool,
        BlockPool::Create(device_, producer->MakeKvLayout(static_cast<int64_t>(longest) / kBlockTokens + 1,
                                                          kBlockTokens, DType::kBf16)));
    for (const std::vector<int32_t>& prompt : prompts) {
      FrameStore store(codec->spec());
      const auto tokens = static_cast<int64_t>(prompt.size());
      EncodeTask task{codec.get(), &store, HandedOver(codec->spec(), tokens).end};
      ALUDEL_RETURN_IF_ERROR(EncodePrompt(*producer, *pool, prompt, tokens - 1, absl::MakeSpan(&task, 1)));
      for (const WireFrame& frame : store.frames()) ALUDEL_RETURN_IF_ERROR(AddFrame(frame, plain));
      result_.tokens += tokens;
    }
    if (frames_.empty()) return absl::InvalidArgumentError("no prompt has tokens to hand over");
    result_.frames = static_cast<int64_t>(frames_.size());
    std::vector<Entropy> entropies;
    for (const LatentGrid& grid : grids_) entropies.emplace_back(grid.bits);
    for (const Frame& frame : frames_) {
      entropies[frame.group].Add(frame);
      result_.symbols_per_token += static_cast<double>(frame.z.size()) / static_cast<double>(result_.tokens);
    }
    for (const Entropy& entropy : entropies) {
      result_.entropy_bytes += entropy.Bytes() / static_cast<double>(result_.tokens);
    }
    return absl::OkStatus();
  }

  absl::Status AddFrame(const WireFrame& stored, const AludelShape& shape) {
    ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(stored.header));
    Frame frame;
    while (shape.groups[frame.group].first_layer != header.coverage.first_layer) ++frame.group;
    const LatentGrid& grid = grids_[frame.group];
    const auto rank = static_cast<int64_t>(grid.bits.size());
    frame.tokens = header.coverage.tokens;
    frame.z.resize(frame.tokens * rank);
    ALUDEL_RETURN_IF_ERROR(
        UnpackLatents(stored.payload, frame.tokens, grid, LatentPacking::kFixed, frame.z.data()));
    frame.planes.resize(PlaneBytes(grid.bits, LatentPacking::kRans, frame.tokens));
    const std::vector<LatentPlane> layout = PlanesOf(grid.bits, LatentPacking::kRans, frame.tokens);
    for (int64_t i = 0; i < rank; ++i) {
      WriteLatent(frame.z.data() + i, rank, frame.tokens, 1.0f / grid.step, layout[i], frame.planes.data());
    }
    frames_.push_back(std::move(frame));
    return absl::OkStatus();
  }

  void FitMissingDecays() {
    for (size_t g = 0; g < grids_.size(); ++g) {
      LatentGrid& grid = grids_[g];
      if (!grid.decays.empty()) continue;
      SymbolCounts counts(grid);
      for (const Frame& frame : frames_) {
        if (frame.group == g)
          counts.Add(frame.z.data(), frame.tokens, static_cast<int64_t>(grid.bits.size()));
      }
      grid.decays = counts.FitDecays();
    }
  }

  // All frames once; adds the seconds of coding and of decoding.
  absl::Status Pass(LatentPacking packing, PackingTimes* times, double* seconds) {
    std::vector<std::unique_ptr<LatentCoder>> coders;
    for (const LatentGrid& grid : grids_) coders.push_back(MakeLatentCoder(grid, packing));
    size_t bytes = 0;
    for (const Frame& frame : frames_) {
      const LatentGrid& grid = grids_[frame.group];
      const LatentCoder* const coder = coders[frame.group].get();
      if (packing == LatentPacking::kFixed) {  // devices write it: there is nothing to code
        bytes += PlaneBytes(grid.bits, packing, frame.tokens);
        continue;
      }
      std::vector<uint8_t> payload(MaxPackedBytes(grid, packing, frame.tokens));
      const Clock::time_point start = Clock::now();
      payload.resize(coder == nullptr ? DeflatePlanes(frame.planes, absl::MakeSpan(payload))
                                      : coder->Encode(frame.planes, frame.tokens, absl::MakeSpan(payload)));
      seconds[0] += SecondsSince(start);
      bytes += payload.size();
      std::vector<uint8_t> opened;
      const Clock::time_point coded = Clock::now();
      ALUDEL_ASSIGN_OR_RETURN(const OpenedPlanes planes,
                              OpenPlanes(payload, grid, packing, coder, frame.tokens, &opened));
      seconds[1] += SecondsSince(coded);
      if (!std::equal(frame.planes.begin(), frame.planes.end(), planes.bytes.begin(), planes.bytes.end())) {
        return absl::InternalError(absl::StrCat(Name(packing), " gives back other codes than it got"));
      }
    }
    times->bytes_per_token = static_cast<double>(bytes) / static_cast<double>(result_.tokens);
    return absl::OkStatus();
  }

  const PackingBenchmarkOptions& options_;
  Device* const device_;
  std::vector<LatentGrid> grids_;
  std::vector<Frame> frames_;
  PackingBenchmark result_;
};

}  // namespace

absl::StatusOr<PackingBenchmark> BenchmarkPackings(
    const PackingBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress) {
  return Benchmark(options, device).Run(progress);
}

double WinsBelow(const PackingTimes& coded, const PackingTimes& plain) {
  const double bits = 8 * (plain.bytes_per_token - coded.bytes_per_token);
  const double seconds =
      coded.encode_seconds + coded.decode_seconds - plain.encode_seconds - plain.decode_seconds;
  if (bits <= 0) return 0;
  return seconds <= 0 ? std::numeric_limits<double>::infinity() : bits / seconds;
}

}  // namespace aludel
