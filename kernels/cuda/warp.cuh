#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"

// The warp's instructions that C++ has no words for. Tests compile kernels for the host: there
// tests/kernels/cuda/simt.h comes first and supplies these names, written from the PTX ISA's tables.
namespace aludel::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

#ifdef __CUDACC__

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Copies 16 bytes from global to shared memory, or zeros where not `there` (`global` is then not read). Both
// are 16-byte aligned. Done when CpAsyncWait says so, for this thread; for others after a barrier.
__device__ inline void CpAsync16(void* shared, const void* global, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}
// Ends a group of copies, which may be empty.
__device__ inline void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all of this thread's groups but the last kPending have come.
template <int kPending>
__device__ inline void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of bf16; lanes 8 i to 8 i + 7 name the rows of the i-th, 16 bytes each.
__device__ inline void LdMatrix(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ inline void LdMatrixTransposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// d += a b: bf16 factors, f32 sums.
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a b: signed bytes, exact. A is [16, 32], B [32, 8].
__device__ inline void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 aligned bytes that are read once: they leave the caches to others.
__device__ inline uint4 LoadOnce(const void* global) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

// Two floats rounded to bf16, to nearest even, the first in the low half.
__device__ inline uint32_t PackBf16(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// Two bf16 times two, each product rounded to nearest even. Subnormals count.
__device__ inline uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
  uint32_t product;
  // Minus zero as the addend leaves the sign of a zero as it is.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

// Byte i of the result is that of `bytes` which the i-th hexadecimal digit of `choice`, from the right, names; 4: zero.
__device__ inline uint32_t ChooseBytes(uint32_t bytes, uint32_t choice) {
  return __byte_perm(bytes, 0, choice);
}

// 2^x, 2 units in the last place; 2^-inf is 0.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Programmatic dependent launch, of compute capability 9.0 (launched by LaunchBehind; else neither does anything). A kernel that
// calls AwaitEarlier in each of its blocks before it reads what kernels before it wrote, and before it writes, may begin
// while they run: until then it works on what no kernel of the step writes. AllowNext lets such a one begin once all blocks
// of this kernel have called it.
__device__ inline void AwaitEarlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void AllowNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif

__device__ inline float WarpMax(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Over each aligned group of `lanes` lanes.
__device__ inline float WarpSum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

}  // namespace aludel::cuda
