// Of their headers alone: no program links a library because of its version.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>
#include <nccl.h>

#include "common/backend.hpp"

namespace shakedown::gpu {
namespace {

std::string cuda(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

/// cuDNN's digits, and NCCL's.
std::string dotted(std::size_t v) {
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

template <class Function>
Function* as(void* function) {
  return reinterpret_cast<Function*>(function);
}

}  // namespace

std::vector<Library> libraries() {
  return {{"cuda", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000), "cudaRuntimeGetVersion",
           cuda(CUDART_VERSION),
           [](void* function) {
             int version = 0;
             as<decltype(cudaRuntimeGetVersion)>(function)(&version);
             return cuda(version);
           }},
          {"cudnn", fmt::format("libcudnn.so.{}", CUDNN_MAJOR), "cudnnGetVersion",
           dotted(CUDNN_VERSION),
           [](void* function) { return dotted(as<decltype(cudnnGetVersion)>(function)()); }},
          {"cublas", fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), "cublasLtGetProperty",
           fmt::format("{}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH),
           [](void* function) {
             int parts[3] = {};
             for (const auto part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL})
               as<decltype(cublasLtGetProperty)>(function)(part, &parts[part]);
             return fmt::format("{}.{}.{}", parts[0], parts[1], parts[2]);
           }},
          {"nccl", fmt::format("libnccl.so.{}", NCCL_MAJOR), "ncclGetVersion",
           dotted(NCCL_VERSION_CODE), [](void* function) {
             int version = 0;
             as<decltype(ncclGetVersion)>(function)(&version);
             return dotted(static_cast<std::size_t>(version));
           }}};
}

}  // namespace shakedown::gpu
