// libFuzzer: safetensors files.
#include "resnet/tensor_file.hpp"

#include "common/usage_error.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shakedown;
  const fuzz::MemoryFile file({data, size});
  try {
    for (const Tensor& tensor : read_safetensors(file.path())) {
      std::int64_t count = 1;
      for (const std::int64_t dimension : tensor.shape) count *= dimension;
      const std::size_t read = tensor.values.size() + tensor.integers.size();
      if (tensor.unread.empty() ? static_cast<std::size_t>(count) != read : read != 0)
        __builtin_trap();
    }
    read_safetensors_metadata(file.path());
  } catch (const UsageError&) {
  }
  return 0;
}
