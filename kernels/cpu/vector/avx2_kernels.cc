#define ALUDEL_VECTOR_BYTES 32
#define ALUDEL_KERNELS Avx2Kernels
#define ALUDEL_NAME "avx2"
#include "kernels/cpu/vector/vector_kernels.inc"
