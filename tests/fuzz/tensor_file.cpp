// libFuzzer: safetensors files.
#include "resnet/tensor_file.hpp"

#include "common/error.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shakedown;
  const fuzz::MemoryFile file({data, size});
  try {
    for (const Tensor& tensor : read_safetensors(file.path())) {
      std::int64_t count = 1;
      for (const std::int64_t dimension : tensor.shape) count *= dimension;
      if (static_cast<std::size_t>(count) != tensor.values.size()) __builtin_trap();
    }
    read_safetensors_metadata(file.path());
  } catch (const UsageError&) {
  }
  return 0;
}
