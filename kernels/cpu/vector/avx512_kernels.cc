#define ALUDEL_VECTOR_BYTES 64
#define ALUDEL_KERNELS Avx512Kernels
#define ALUDEL_NAME "avx512"
#include "kernels/cpu/vector/vector_kernels.inc"
