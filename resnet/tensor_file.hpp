// Tensors by name, and the safetensors format: 8 bytes of header length (little-endian), a JSON
// header {name: {dtype, shape, data_offsets}}, then the data.
// https://github.com/huggingface/safetensors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shakedown {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;  // row-major
  bool is_integer = false;    // written as int64 (num_batches_tracked)
};

/// Reads F64, F32, F16, BF16, I64 and I32 tensors, as float32. Throws UsageError naming the file
/// and what is wrong with it; a PyTorch pickle is recognised and the way to convert it told.
std::vector<Tensor> read_safetensors(const std::string& path);

/// As write_file.
void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors);

}  // namespace shakedown
