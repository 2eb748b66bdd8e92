#include "kernels/latents.h"

#include "kernels/cpu/cpu_ops.h"

namespace aludel {
namespace {

// What a code costs, in multiply-adds, about.
constexpr int64_t kCodeWork = 4;

void WriteBytes(const float* z, int64_t stride, int64_t tokens, float inverse_step, int bits, uint8_t* low) {
  for (int64_t t = 0; t < tokens; ++t) {
    low[t] = static_cast<uint8_t>(LatentCode(z[t * stride], inverse_step, bits));
  }
}

void WriteTwoBytes(const float* z, int64_t stride, int64_t tokens, float inverse_step, int bits, uint8_t* low,
                   uint8_t* high) {
  for (int64_t t = 0; t < tokens; ++t) {
    const auto code = static_cast<uint32_t>(LatentCode(z[t * stride], inverse_step, bits));
    low[t] = static_cast<uint8_t>(code);
    high[t] = static_cast<uint8_t>(code >> 8);
  }
}

void WriteBits(const float* z, int64_t stride, int64_t tokens, float inverse_step, const LatentPlane& plane,
               uint8_t* out) {
  const uint32_t mask = (1u << plane.width) - 1;
  uint64_t pending = 0;
  int filled = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto code = static_cast<uint32_t>(LatentCode(z[t * stride], inverse_step, plane.bits));
    pending |= static_cast<uint64_t>(code & mask) << filled;
    for (filled += plane.width; filled >= 8; filled -= 8, pending >>= 8)
      *out++ = static_cast<uint8_t>(pending);
  }
  if (filled > 0) *out = static_cast<uint8_t>(pending);
}

void Put(float value, float* to) { *to = value; }
void Put(float value, Bf16* to) { *to = ToBf16(value); }

template <typename T>
void ReadBits(const uint8_t* in, int width, int64_t first, int64_t tokens, float step, T* z, int64_t stride) {
  in += first * width / 8;
  const auto skipped = static_cast<int>(first * width % 8);
  uint64_t pending = 0;
  int filled = -skipped;
  for (int64_t t = 0; t < tokens; ++t) {
    for (; filled < width; filled += 8) {
      const uint64_t byte = *in++;
      pending |= filled < 0 ? byte >> -filled : byte << filled;
    }
    Put(step * static_cast<float>(SignExtend(static_cast<uint32_t>(pending), width)), z + t * stride);
    pending >>= width;
    filled -= width;
  }
}

template <typename T>
void Read(const uint8_t* bytes, const LatentPlane& plane, int64_t first, int64_t tokens, float step, T* z,
          int64_t stride) {
  const uint8_t* const low = bytes + plane.offset;
  if (plane.high_offset > 0) {
    const uint8_t* const high = bytes + plane.high_offset;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto code = static_cast<int16_t>(low[first + t] | high[first + t] << 8);
      Put(step * static_cast<float>(code), z + t * stride);
    }
  } else if (plane.width == 8) {
    for (int64_t t = 0; t < tokens; ++t) {
      Put(step * static_cast<float>(static_cast<int8_t>(low[first + t])), z + t * stride);
    }
  } else {
    ReadBits(low, plane.width, first, tokens, step, z, stride);
  }
}

}  // namespace

void WriteLatent(const float* z, int64_t stride, int64_t tokens, float inverse_step, const LatentPlane& plane,
                 uint8_t* bytes) {
  uint8_t* const low = bytes + plane.offset;
  if (plane.high_offset > 0) {
    WriteTwoBytes(z, stride, tokens, inverse_step, plane.bits, low, bytes + plane.high_offset);
  } else if (plane.width == 8) {
    WriteBytes(z, stride, tokens, inverse_step, plane.bits, low);
  } else {
    WriteBits(z, stride, tokens, inverse_step, plane, low);
  }
}

void ReadLatent(const uint8_t* bytes, const LatentPlane& plane, int64_t first, int64_t tokens, float step,
                float* z, int64_t stride) {
  Read(bytes, plane, first, tokens, step, z, stride);
}

void CpuOps::PackLatents(const TensorView& z, float inverse_step, absl::Span<const LatentPlane> planes,
                         uint8_t* bytes, Stream) {
  ALUDEL_CHECK(z.cols == static_cast<int64_t>(planes.size()));
  const float* const first = z.f32();
  ForRows(z.cols, kCodeWork * z.rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      WriteLatent(first + i, z.stride, z.rows, inverse_step, planes[i], bytes);
    }
  });
}

void CpuOps::UnpackLatents(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t first,
                           float step, const TensorView& z, Stream) {
  ALUDEL_CHECK(z.cols == static_cast<int64_t>(planes.size()));
  const auto unpack = [&](auto* out) {
    ForRows(z.cols, kCodeWork * z.rows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) Read(bytes, planes[i], first, z.rows, step, out + i, z.stride);
    });
  };
  if (z.dtype == DType::kF32) {
    unpack(z.f32());
  } else {
    unpack(z.bf16());
  }
}

}  // namespace aludel
