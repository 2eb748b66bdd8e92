#include "runtime/bench/plane_benchmark.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/calibrate/calibration_setup.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/raw.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kLayersOfAPicture = 3;
constexpr int kBlock = 8;
constexpr uint8_t kZero = 128;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// K or V of one frame's tokens in up to three layers: codes + 128.
struct Sequence {
  int64_t tokens = 0;
  std::vector<std::vector<uint8_t>> layers;  // [tokens, kv_dim] each
};

// Rows of bf16 numbers to codes, each row by its own scale.
std::vector<uint8_t> Quantize(const uint8_t* numbers, int64_t tokens, int64_t width) {
  std::vector<uint8_t> codes(tokens * width);
  std::vector<float> row(width);
  for (int64_t t = 0; t < tokens; ++t) {
    float largest = 0;
    for (int64_t i = 0; i < width; ++i) {
      Bf16 number;
      std::memcpy(&number, numbers + (t * width + i) * sizeof(Bf16), sizeof(Bf16));
      row[i] = ToFloat(number);
      largest = std::max(largest, std::abs(row[i]));
    }
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (int64_t i = 0; i < width; ++i) {
      codes[t * width + i] = static_cast<uint8_t>(kZero + static_cast<int>(std::lround(row[i] * inverse)));
    }
  }
  return codes;
}

class Benchmark {
 public:
  Benchmark(const CalibrateJob& job, Device* device) : job_(job), device_(device) {}

  absl::StatusOr<PlaneBenchmark> Run(const std::function<bool(int64_t, int64_t)>& progress) {
    ALUDEL_RETURN_IF_ERROR(LoadHevcEncoder());
    ALUDEL_RETURN_IF_ERROR(LoadHevcDecoder());
    ALUDEL_RETURN_IF_ERROR(MakeSequences());
    for (int rows = 1; rows <= head_dim_ && head_dim_ % rows == 0; rows *= 2) {
      for (int columns = 1; columns <= heads_; ++columns) {
        if (heads_ % columns == 0) result_.tilings.push_back({{rows, columns}});
      }
    }
    const auto total = static_cast<int64_t>(result_.tilings.size());
    for (int64_t i = 0; i < total; ++i) {
      if (!progress(i, total)) return absl::CancelledError("the benchmark was interrupted");
      ALUDEL_RETURN_IF_ERROR(Measure(&result_.tilings[i]));
    }
    progress(total, total);
    return result_;
  }

 private:
  absl::Status MakeSequences() {
    ALUDEL_ASSIGN_OR_RETURN(const auto model, LoadForCalibration(job_, device_, job_.producer));
    const ModelConfig& config = model->config();
    kv_dim_ = config.kv_dim();
    head_dim_ = config.head_dim;
    heads_ = config.kv_heads;
    ALUDEL_ASSIGN_OR_RETURN(const auto prompts, LoadPrompts(job_, job_.data, job_.prompts, config));
    size_t longest = 0;
    for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
    constexpr int kBlockTokens = 16;
    ALUDEL_ASSIGN_OR_RETURN(
        const auto pool,
        BlockPool::Create(device_, model->MakeKvLayout(static_cast<int64_t>(longest) / kBlockTokens + 1,
                                                       kBlockTokens, DType::kBf16)));
    std::vector<std::array<double, 256>> counts(2 * config.layers);
    const auto codec = MakeRawEncoders(*model);
    for (const std::vector<int32_t>& prompt : prompts) {
      FrameStore store(codec->spec());
      EncodeTask task{codec.get(), &store};
      ALUDEL_RETURN_IF_ERROR(EncodePrompt(*model, *pool, prompt, static_cast<int64_t>(prompt.size()) - 1,
                                          absl::MakeSpan(&task, 1)));
      for (const WireFrame& frame : store.frames()) ALUDEL_RETURN_IF_ERROR(AddFrame(frame, &counts));
    }
    if (sequences_.empty()) return absl::InvalidArgumentError("no prompt has tokens to hand over");
    double bits = 0, all = 0;
    for (const auto& table : counts) {
      double count = 0;
      for (const double symbol : table) count += symbol;
      for (const double symbol : table) bits -= symbol > 0 ? symbol * std::log2(symbol / count) : 0;
      all += count;
    }
    result_.values_per_token = 2 * config.layers * kv_dim_;
    result_.tokens = static_cast<int64_t>(all) / result_.values_per_token;
    result_.entropy_bits = bits / all;
    result_.scale_bytes = 2.0 * config.layers * sizeof(Bf16);
    return absl::OkStatus();
  }

  // Frames of a chunk come layer by layer: K of three of them, and V, go on in the two sequences begun last.
  absl::Status AddFrame(const WireFrame& frame, std::vector<std::array<double, 256>>* counts) {
    ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
    const int layer = header.coverage.first_layer;
    const int64_t tokens = header.coverage.tokens;
    if (layer % kLayersOfAPicture == 0) sequences_.resize(sequences_.size() + 2, Sequence{tokens, {}});
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<uint8_t> codes =
          Quantize(frame.payload.data() + kind * tokens * kv_dim_ * sizeof(Bf16), tokens, kv_dim_);
      for (const uint8_t code : codes) ++(*counts)[2 * layer + kind][code];
      sequences_[sequences_.size() - 2 + kind].layers.push_back(std::move(codes));
    }
    return absl::OkStatus();
  }

  HevcPictures Pictures(const Sequence& sequence, const HeadTiling& tiling) const {
    const auto padded = [](int side) {
      return std::max(kMinSequenceSide, (side + kBlock - 1) / kBlock * kBlock);
    };
    const int block_width = head_dim_ / tiling.head_rows;
    HevcPictures pictures;
    pictures.width = padded(block_width * tiling.grid_columns);
    pictures.height = padded(tiling.head_rows * (heads_ / tiling.grid_columns));
    pictures.count = static_cast<int>(sequence.tokens);
    pictures.three_planes = true;
    pictures.samples.assign(pictures.plane_bytes() * 3 * sequence.tokens, kZero);
    for (size_t layer = 0; layer < sequence.layers.size(); ++layer) {
      for (int64_t t = 0; t < sequence.tokens; ++t) {
        uint8_t* const plane = pictures.samples.data() + pictures.plane_bytes() * (3 * t + layer);
        const uint8_t* from = sequence.layers[layer].data() + t * kv_dim_;
        for (int head = 0; head < heads_; ++head) {
          for (int row = 0; row < tiling.head_rows; ++row, from += block_width) {
            const int y = head / tiling.grid_columns * tiling.head_rows + row;
            const int x = head % tiling.grid_columns * block_width;
            std::copy_n(from, block_width, plane + static_cast<int64_t>(y) * pictures.width + x);
          }
        }
      }
    }
    return pictures;
  }

  absl::Status Measure(TilingTimes* times) const {
    double bytes = 0;
    for (const Sequence& sequence : sequences_) {
      const HevcPictures pictures = Pictures(sequence, times->tiling);
      const Clock::time_point start = Clock::now();
      ALUDEL_ASSIGN_OR_RETURN(const auto slices, EncodeHevcSequence(pictures));
      times->encode_seconds += SecondsSince(start) / static_cast<double>(result_.tokens);
      const std::vector<absl::Span<const uint8_t>> spans(slices.begin(), slices.end());
      for (const absl::Span<const uint8_t> slice : spans) bytes += static_cast<double>(slice.size());
      HevcPictures back = pictures;
      const Clock::time_point coded = Clock::now();
      ALUDEL_RETURN_IF_ERROR(DecodeHevcSequence(spans, &back));
      times->decode_seconds += SecondsSince(coded) / static_cast<double>(result_.tokens);
      if (back.samples != pictures.samples)
        return absl::InternalError("HEVC gives back other planes than it got");
    }
    times->bits_per_value = 8 * bytes / static_cast<double>(result_.tokens * result_.values_per_token);
    return absl::OkStatus();
  }

  const CalibrateJob& job_;
  Device* const device_;
  int64_t kv_dim_ = 0;
  int head_dim_ = 0;
  int heads_ = 0;
  std::vector<Sequence> sequences_;
  PlaneBenchmark result_;
};

}  // namespace

absl::StatusOr<PlaneBenchmark> BenchmarkPlanes(
    const CalibrateJob& job, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress) {
  return Benchmark(job, device).Run(progress);
}

}  // namespace aludel
