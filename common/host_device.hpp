// Marks functions that a .cu file compiles for both sides, and that a .cpp file compiles as ever.
#pragma once

#ifdef __CUDACC__
#define SHAKEDOWN_HOST_DEVICE __host__ __device__
#else
#define SHAKEDOWN_HOST_DEVICE
#endif
