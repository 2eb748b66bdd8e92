#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel::cpu {
namespace {

constexpr int kLanes = 16;
static_assert(kInBlock % kLanes == 0);

// Added to a small float it leaves the nearest integer in the low bits, ties to even.
constexpr float kRounder = 0x1.8p23f;
constexpr int32_t kRounderBits = 0x4b400000;
static_assert(__builtin_bit_cast(int32_t, kRounder) == kRounderBits);

// The functions of loops below are compiled several times (simd.h): what they call must be part of them.
#define ALUDEL_INLINE inline __attribute__((always_inline))

ALUDEL_INLINE int32_t Nearest(float x) { return __builtin_bit_cast(int32_t, x + kRounder) - kRounderBits; }

// The largest |x| of a block; NaN if there is one: without their signs floats order as integers do, NaN last.
ALUDEL_INLINE float LargestOf(const float* x) {
  int32_t largest = 0;
  for (int i = 0; i < kInBlock; ++i) {
    const int32_t bits = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return __builtin_bit_cast(float, largest);
}

// A block of NaN or infinities becomes zeros with a scale of that kind, and products of it NaN.
ALUDEL_INLINE float Inverse(float scale) {
  const float inverse = 1.0f / scale;
  return scale != 0.0f && inverse - inverse == 0.0f ? inverse : 0.0f;
}

// Blocks of one row to int8, their scales and sums. Sums wrap: those of a NaN's integers are any number.
ALUDEL_SIMD void QuantizeRow(const float* x, int64_t blocks, int8_t* values, float* scales, uint32_t* sums) {
  for (int64_t block = 0; block < blocks; ++block) {
    const float scale = LargestOf(x) / 127.0f;
    const float inverse = Inverse(scale);
    uint32_t sum = 0;
    for (int i = 0; i < kInBlock; ++i) {
      const int32_t value = Nearest(x[i] * inverse);
      values[i] = static_cast<int8_t>(value);
      sum += static_cast<uint32_t>(value);
    }
    scales[block] = scale;
    sums[block] = sum;
    x += kInBlock;
    values += kInBlock;
  }
}

// Weights [kInBlock] to integers within [low, high], and the sum of the squared errors.
ALUDEL_INLINE float RoundWeights(const float* x, float scale, int low, int high, int32_t* values) {
  const float inverse = Inverse(scale);
  float errors[kLanes] = {};
  for (int i = 0; i < kInBlock; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      int32_t value = Nearest(x[i + lane] * inverse);
      value = value < low ? low : value;
      value = value > high ? high : value;
      values[i + lane] = value;
      const float error = x[i + lane] - scale * static_cast<float>(value);
      errors[lane] += error * error;
    }
  }
  float sum = 0;
  for (const float error : errors) sum += error;
  return sum;
}

ALUDEL_INLINE float ScaleAsStored(float scale) { return ToFloat(ToBf16(scale)); }

// Blocks of one output's weights as bytes above int8's offset.
ALUDEL_SIMD void QuantizeToInt8(const float* x, int64_t blocks, uint8_t* values, Bf16* scales) {
  for (int64_t block = 0; block < blocks; ++block) {
    const float scale = ScaleAsStored(LargestOf(x) / 127.0f);
    int32_t integers[kInBlock];
    RoundWeights(x, scale, -127, 127, integers);
    for (int i = 0; i < kInBlock; ++i) values[i] = static_cast<uint8_t>(integers[i] + kInt8Offset);
    scales[block] = ToBf16(scale);
    x += kInBlock;
    values += kInBlock;
  }
}

// The same above int4's. The scale's sign makes the largest weight the one at -8, the longer end, or at less:
// of some scales the one that leaves the least error (about 15 % less than -8 alone).
ALUDEL_SIMD void QuantizeToInt4(const float* x, int64_t blocks, uint8_t* values, Bf16* scales) {
  constexpr float kEnds[] = {8.0f, 9.0f, 8.5f, 7.5f, 7.0f};
  for (int64_t block = 0; block < blocks; ++block) {
    const float largest = LargestOf(x);
    bool negative = false;
    for (int i = 0; i < kInBlock; ++i) negative |= x[i] == -largest;
    const float sign = negative ? 1.0f : -1.0f;
    int32_t best[kInBlock];
    float scale = ScaleAsStored(sign * largest / kEnds[0]);
    float least = RoundWeights(x, scale, -8, 7, best);
    for (const float end : kEnds) {
      int32_t integers[kInBlock];
      const float candidate = ScaleAsStored(sign * largest / end);
      const float error = RoundWeights(x, candidate, -8, 7, integers);
      if (!(error < least)) continue;
      least = error;
      scale = candidate;
      std::memcpy(best, integers, sizeof(best));
    }
    for (int i = 0; i < kInBlock; ++i) values[i] = static_cast<uint8_t>(best[i] + kInt4Offset);
    scales[block] = ToBf16(scale);
    x += kInBlock;
    values += kInBlock;
  }
}

// Row `row`, inputs [first, first + count), as floats with zeros up to `padded`.
void LoadPadded(const TensorView& view, int64_t row, int64_t first, int64_t count, int64_t padded,
                float* out) {
  const TensorView part = view.Cols(first, count);
  const float* const from = LoadRow(part, row, out);
  if (from != out) std::memcpy(out, from, count * sizeof(float));
  std::fill(out + count, out + padded, 0.0f);
}

}  // namespace

void QuantizeInputs(const TensorView& a, int64_t begin, int64_t end, int64_t first, int64_t last,
                    const CpuPackedMatrix& w, uint32_t* to) {
  const int64_t rows = end - begin;
  const int64_t blocks = last - first;
  const int64_t count = std::min(a.cols - first * kInBlock, blocks * kInBlock);
  const int32_t offset = w.format() == WeightFormat::kInt8 ? kInt8Offset : kInt4Offset;
  std::vector<float> x(blocks * kInBlock), scales(blocks);
  std::vector<int8_t> values(blocks * kInBlock);
  std::vector<uint32_t> sums(blocks);
  for (int64_t r = 0; r < rows; ++r) {
    LoadPadded(a, begin + r, first * kInBlock, count, blocks * kInBlock, x.data());
    QuantizeRow(x.data(), blocks, values.data(), scales.data(), sums.data());
    for (int64_t block = 0; block < blocks; ++block) {
      uint32_t words[kQuantizedWords];
      std::memcpy(words, values.data() + block * kInBlock, kInBlock);
      words[kInBlock / 4] = static_cast<uint32_t>(-offset) * sums[block];
      words[kInBlock / 4 + 1] = __builtin_bit_cast(uint32_t, scales[block]);
      uint32_t* const column = to + (first + block) * kQuantizedWords * rows + r;
      for (int i = 0; i < kQuantizedWords; ++i) column[i * rows] = words[i];
    }
  }
}

void QuantizeWeights(const TensorView& host_rows, int64_t row, WeightFormat format, int8_t* values,
                     Bf16* scales) {
  const int64_t padded = CpuPackedMatrix::PaddedIn(host_rows.cols);
  const bool wide = format == WeightFormat::kInt8;
  std::vector<float> x(padded);
  std::vector<uint8_t> raised(padded);
  LoadPadded(host_rows, row, 0, host_rows.cols, padded, x.data());
  (wide ? QuantizeToInt8 : QuantizeToInt4)(x.data(), padded / kInBlock, raised.data(), scales);
  for (int64_t k = 0; k < padded; ++k) {
    values[k] = static_cast<int8_t>(raised[k] - (wide ? kInt8Offset : kInt4Offset));
  }
}

void QuantizePanel(const TensorView& host_rows, const CpuPackedMatrix& w, int64_t index) {
  const int64_t blocks = w.in_blocks();
  const bool wide = w.format() == WeightFormat::kInt8;
  const int64_t block_bytes = wide ? kInt8BlockBytes : kInt4BlockBytes;
  const int64_t weight_bytes = block_bytes - kPanelCols * static_cast<int64_t>(sizeof(Bf16));
  std::vector<float> x(blocks * kInBlock);
  std::vector<uint8_t> values(blocks * kInBlock);
  std::vector<Bf16> scales(blocks);
  char* const panel = w.panel(index);
  if (host_rows.rows < kPanelCols) std::memset(panel, 0, w.panel_bytes());
  for (int64_t c = 0; c < host_rows.rows; ++c) {
    LoadPadded(host_rows, c, 0, host_rows.cols, blocks * kInBlock, x.data());
    (wide ? QuantizeToInt8 : QuantizeToInt4)(x.data(), blocks, values.data(), scales.data());
    for (int64_t block = 0; block < blocks; ++block) {
      char* to = panel + block * block_bytes;
      std::memcpy(to + weight_bytes + c * static_cast<int64_t>(sizeof(Bf16)), &scales[block], sizeof(Bf16));
      to += c * 4;
      const uint8_t* const from = values.data() + block * kInBlock;
      for (int i = 0; i < kInBlock; i += wide ? 4 : 8) {
        uint32_t quad, next;
        std::memcpy(&quad, from + i, sizeof(quad));
        if (!wide) {
          std::memcpy(&next, from + i + 4, sizeof(next));
          quad |= next << 4;
        }
        std::memcpy(to, &quad, sizeof(quad));
        to += kPanelCols * 4;
      }
    }
  }
}

}  // namespace aludel::cpu
