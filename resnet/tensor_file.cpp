#include "resnet/tensor_file.hpp"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/error.hpp"
#include "common/half.hpp"
#include "common/output_file.hpp"

namespace shakedown {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T read_as(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

struct Format {
  const char* name;
  std::size_t size;
  float (*read)(const char*);
};
constexpr Format kFormats[] = {
    {"F64", 8, [](const char* p) { return static_cast<float>(read_as<double>(p)); }},
    {"F32", 4, [](const char* p) { return read_as<float>(p); }},
    {"F16", 2, [](const char* p) { return float16_to_float(read_as<std::uint16_t>(p)); }},
    {"BF16", 2, [](const char* p) { return bfloat16_to_float(read_as<std::uint16_t>(p)); }},
    {"I64", 8, [](const char* p) { return static_cast<float>(read_as<std::int64_t>(p)); }},
    {"I32", 4, [](const char* p) { return static_cast<float>(read_as<std::int32_t>(p)); }},
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  return {std::istreambuf_iterator<char>(in), {}};
}

Tensor read_tensor(const std::string& path, const std::string& name, const Json& entry,
                   const std::string& file, std::size_t data_start) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: tensor {}: {}", path, name, why));
  };
  Tensor tensor;
  tensor.name = name;
  tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
  const auto dtype = entry.at("dtype").get<std::string>();
  const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  const Format* format = nullptr;
  for (const Format& known : kFormats)
    if (dtype == known.name) format = &known;
  if (format == nullptr) refuse("type " + dtype + " is not understood");

  std::uint64_t count = 1;
  for (std::int64_t dimension : tensor.shape) {
    if (dimension < 0) refuse("a negative dimension");
    // a product past the file's size cannot be true, and must not overflow
    if (dimension > 0 && count > file.size() / static_cast<std::uint64_t>(dimension))
      refuse("its shape is larger than the file");
    count *= static_cast<std::uint64_t>(dimension);
  }
  const std::uint64_t room = file.size() - data_start;
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > room)
    refuse("its data lie outside the file (truncated?)");
  if (offsets[1] - offsets[0] != count * format->size) refuse("its shape and size disagree");

  tensor.values.resize(count);
  const char* from = file.data() + data_start + offsets[0];
  for (std::uint64_t i = 0; i < count; ++i)
    tensor.values[i] = format->read(from + i * format->size);
  tensor.is_integer = dtype[0] == 'I';
  return tensor;
}

}  // namespace

std::vector<Tensor> read_safetensors(const std::string& path) {
  const std::string file = read_file(path);
  if (file.rfind("PK", 0) == 0 || file.rfind("\x80\x02", 0) == 0)
    throw UsageError(fmt::format(
        "{0}: a PyTorch pickle, not safetensors. Convert it where PyTorch is: python3 -c \"import "
        "torch, safetensors.torch as s; s.save_file(torch.load('{0}', map_location='cpu', "
        "weights_only=True), 'weights.safetensors')\"",
        path));
  if (file.size() < 8) throw UsageError(path + ": too short for a safetensors file");
  const auto header_bytes = read_as<std::uint64_t>(file.data());
  if (header_bytes > file.size() - 8)
    throw UsageError(path + ": not a safetensors file, or truncated");
  std::vector<Tensor> tensors;
  try {
    const Json header =
        Json::parse(file.begin() + 8, file.begin() + 8 + static_cast<std::ptrdiff_t>(header_bytes));
    if (!header.is_object()) throw UsageError(path + ": its header is not a JSON object");
    for (const auto& [name, entry] : header.items())
      if (name != "__metadata__")
        tensors.push_back(read_tensor(path, name, entry, file, 8 + header_bytes));
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: its header is not understood: {}", path, error.what()));
  }
  return tensors;
}

void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.values.size() * (tensor.is_integer ? 8U : 4U);
    header[tensor.name] = {{"dtype", tensor.is_integer ? "I64" : "F32"},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data start aligned

  const std::uint64_t length = text.size();
  write_file(path, [&](std::ostream& out) {
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const Tensor& tensor : tensors) {
      if (tensor.is_integer) {
        const std::vector<std::int64_t> integers(tensor.values.begin(), tensor.values.end());
        out.write(reinterpret_cast<const char*>(integers.data()),
                  static_cast<std::streamsize>(integers.size() * sizeof(std::int64_t)));
      } else {
        out.write(reinterpret_cast<const char*>(tensor.values.data()),
                  static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
      }
    }
  });
}

}  // namespace shakedown
