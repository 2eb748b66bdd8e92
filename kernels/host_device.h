#pragma once

// Marks functions that kernels and the host share.
#ifdef __CUDACC__
#define ALUDEL_HOST_DEVICE __host__ __device__
#else
#define ALUDEL_HOST_DEVICE
#endif
