#define ALUDEL_VECTOR_BYTES 16
#define ALUDEL_KERNELS PortableKernels
#define ALUDEL_NAME "portable"
#include "kernels/cpu/vector/vector_kernels.inc"
