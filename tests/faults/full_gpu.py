"""Runs a program while this process holds all memory of the first visible GPU but 1 GiB.

usage: full_gpu.py PROGRAM [ARGS...]"""

import ctypes
import subprocess
import sys

LEFT = 2 ** 30


def check(status):
    if status:
        sys.exit(f"full_gpu.py: CUDA error {status}")


cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(free.value - LEFT)))
sys.exit(subprocess.call(sys.argv[1:]))
