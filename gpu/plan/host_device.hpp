#pragma once

// Functions that the host plans with and kernels run.
#ifdef __CUDACC__
#define LORATORY_HOST_DEVICE __host__ __device__
#else
#define LORATORY_HOST_DEVICE
#endif
