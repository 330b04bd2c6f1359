// Tensors by name, and the safetensors format: 8 bytes of header length (little-endian), a JSON
// header {name: {dtype, shape, data_offsets}}, then the data.
// https://github.com/huggingface/safetensors
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "common/output_file.hpp"

namespace shakedown {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;                // row-major
  std::vector<std::int64_t> integers = {};  // of an integer tensor, in the place of values
  std::string unread = {};  // the file's dtype where it is not supported: there are no numbers

  bool is_integer() const { return !integers.empty(); }
};

/// The header's __metadata__: text by name.
using Metadata = std::map<std::string, std::string>;

/// Reads tensors of floating-point numbers, as float32, and of integers; of other dtypes only name
/// and shape. Throws UsageError naming the file, the tensor and what the format forbids: overlaps,
/// holes, duplicate keys, trailing bytes. PyTorch pickles are detected; the error message shows how
/// to convert them.
std::vector<Tensor> read_safetensors(const std::string& path);

/// Reads only the header. Throws as read_safetensors.
Metadata read_safetensors_metadata(const std::string& path);

/// Adds "format": "pt" to the metadata, as PyTorch's loaders expect. Bytes of the metadata that are
/// not UTF-8 are replaced by U+FFFD. Throws as write_file.
void write_safetensors(const Output& output, const std::vector<Tensor>& tensors,
                       Metadata metadata = {});

/// The same to a stream, whose state shows whether that succeeded.
void write_safetensors(std::ostream& out, const std::vector<Tensor>& tensors, Metadata metadata);

/// Of its numbers, in a file that is written.
std::size_t bytes_of(const Tensor& tensor);

/// A name read from a file, safe to print: quoted, cut at 60 bytes, in ASCII.
std::string quoted(const std::string& name);

}  // namespace shakedown
