#include "resnet/tensor_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "common/numbers.hpp"
#include "common/usage_error.hpp"

namespace shakedown {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMetadata = "__metadata__";
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the reference implementation's limit

template <class T>
T read_as(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// Of both functions at most one is set; none: the numbers are not read.
struct Format {
  const char* name;
  std::size_t size;
  float (*read)(const char*) = nullptr;
  std::int64_t (*read_integer)(const char*) = nullptr;
};
template <class T>
constexpr Format plain(const char* name) {
  if constexpr (std::is_integral_v<T>)
    return {name, sizeof(T), nullptr,
            [](const char* p) { return static_cast<std::int64_t>(read_as<T>(p)); }};
  else
    return {name, sizeof(T), [](const char* p) { return static_cast<float>(read_as<T>(p)); }};
}
constexpr Format kFormats[] = {
    plain<double>("F64"),
    plain<float>("F32"),
    {"F16", 2, [](const char* p) { return float16_to_float(read_as<std::uint16_t>(p)); }},
    {"BF16", 2, [](const char* p) { return bfloat16_to_float(read_as<std::uint16_t>(p)); }},
    plain<std::int64_t>("I64"),
    plain<std::int32_t>("I32"),
    plain<std::int16_t>("I16"),
    plain<std::int8_t>("I8"),
    plain<std::uint64_t>("U64"),
    plain<std::uint32_t>("U32"),
    plain<std::uint16_t>("U16"),
    plain<std::uint8_t>("U8"),
    plain<std::uint8_t>("BOOL"),
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"C64", 8},
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw UsageError(fmt::format("{}: {}", path, why));
}

/// A pipe is refused, and never waited for: every rank reads the file, some of it twice.
std::ifstream open(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    refuse(path, fmt::format("cannot be read: {}", std::strerror(EISDIR)));
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    refuse(path, "cannot be read: it is no regular file");
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  return in;
}

/// Fewer at the end of the file.
std::string read_bytes(const std::string& path, std::istream& in, std::size_t bytes) {
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) refuse(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  return text;
}

/// Parses a JSON object; the format forbids duplicate keys, which JSON leaves open.
Json parse_header(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second)
      refuse(path, fmt::format("its header has the key {} twice", quoted(parsed)));
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    refuse(path, fmt::format("its header is not JSON: fault at byte {} of the header", error.byte));
  } catch (const Json::out_of_range&) {
    refuse(path, "its header has a number that no double holds");
  }
}

/// A zip file, or a pickle of protocol 2 to 5.
bool is_pytorch(const std::string& start) {
  return start.starts_with("PK\x03\x04") ||
         (start.size() >= 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5);
}

/// Reads the header; the data follow in the stream. Other formats are looked for where this cannot
/// be safetensors: a header of 640 bytes begins as a pickle does.
Json read_header(const std::string& path, std::istream& in) {
  const std::string start = read_bytes(path, in, 8);
  const auto bytes = start.size() < 8 ? 0 : read_as<std::uint64_t>(start.data());
  if (bytes > kMostHeaderBytes || in.peek() != '{') {
    if (is_pytorch(start))
      refuse(path, fmt::format("a PyTorch pickle, not safetensors. Convert it: "
                               "training/convert_weights.py {} weights.safetensors",
                               path));
    if (start.starts_with("{"))
      refuse(path,
             "JSON, not safetensors. The index of a sharded model is not supported: save the model "
             "as one file");
    if (start.size() < 8) refuse(path, "too short for a safetensors file");
    if (bytes > kMostHeaderBytes) refuse(path, "not a safetensors file: its header is too long");
    if (in.eof()) refuse(path, "not a safetensors file, or truncated");
    refuse(path, "not a safetensors file: its header is not a JSON object");
  }
  const std::string text = read_bytes(path, in, bytes);
  if (text.size() < bytes) refuse(path, "not a safetensors file, or truncated");
  return parse_header(path, text);
}

Metadata metadata_of(const std::string& path, const Json& header) {
  Metadata metadata;
  const auto found = header.find(kMetadata);
  if (found == header.end()) return metadata;
  if (!found->is_object()) refuse(path, "its __metadata__ is not a JSON object");
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string())
      refuse(path, fmt::format("its __metadata__ {} is not a string", quoted(name)));
    metadata[name] = value.get<std::string>();
  }
  return metadata;
}

/// A tensor as the header describes it.
struct Entry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;
  const Format* format;  // null: of a dtype whose size is not known
  std::uint64_t begin;   // in the data
  std::uint64_t end;
};

/// Member `key` of an entry: a list of integers that are not negative.
std::vector<std::uint64_t> list_of(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  const auto is_count = [](const Json& value) { return value.is_number_unsigned(); };
  if (found == entry.end() || !found->is_array() ||
      !std::all_of(found->begin(), found->end(), is_count))
    throw UsageError(fmt::format("its {} is not a list of non-negative integers", key));
  return found->get<std::vector<std::uint64_t>>();
}

/// Throws UsageError with the reason alone.
Entry parse_entry(const std::string& name, const Json& json, std::uint64_t data_bytes) {
  if (!json.is_object()) throw UsageError("its entry is not a JSON object");
  Entry entry{name, {}, "", nullptr, 0, 0};
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string()) throw UsageError("its dtype is not a string");
  entry.dtype = *dtype;
  for (const Format& known : kFormats)
    if (entry.dtype == known.name) entry.format = &known;

  std::uint64_t count = 1;
  for (const std::uint64_t dimension : list_of(json, "shape")) {
    // a product past the file's size cannot be true, and must not overflow; a byte is eight numbers
    // at most
    const std::uint64_t most = data_bytes * (entry.format == nullptr ? 8 : 1);
    if (dimension > most || (dimension > 0 && count > most / dimension))
      throw UsageError("its shape is larger than the file (truncated?)");
    count *= dimension;
    entry.shape.push_back(static_cast<std::int64_t>(dimension));
  }
  const auto offsets = list_of(json, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes)
    throw UsageError("its data lie outside the file (truncated?)");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.format != nullptr && entry.end - entry.begin != count * entry.format->size)
    throw UsageError("its shape and size disagree");
  return entry;
}

std::vector<Entry> parse_entries(const std::string& path, const Json& header,
                                 std::uint64_t data_bytes) {
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) continue;
    try {
      entries.push_back(parse_entry(name, json, data_bytes));
    } catch (const UsageError& error) {
      refuse(path, fmt::format("tensor {}: {}", quoted(name), error.what()));
    }
  }
  return entries;
}

/// The tensors' data must fill the file: one after the other, in any order.
void check_coverage(const std::string& path, const std::vector<Entry>& entries,
                    std::uint64_t data_bytes) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t end = 0;
  for (const Entry* entry : sorted) {
    if (entry->begin != end)
      refuse(path, fmt::format("tensor {}: its data {} before them", quoted(entry->name),
                               entry->begin < end ? "overlap the data" : "leave a hole"));
    end = entry->end;
  }
  if (end != data_bytes)
    refuse(path, fmt::format("{} bytes follow the last tensor's data", data_bytes - end));
}

Tensor read_tensor(const Entry& entry, const std::string& data) {
  Tensor tensor{entry.name, entry.shape, {}};
  const auto read = [&](auto function, auto& numbers) {
    numbers.reserve((entry.end - entry.begin) / entry.format->size);
    for (std::uint64_t at = entry.begin; at < entry.end; at += entry.format->size)
      numbers.push_back(function(data.data() + at));
  };
  if (entry.format != nullptr && entry.format->read != nullptr)
    read(entry.format->read, tensor.values);
  else if (entry.format != nullptr && entry.format->read_integer != nullptr)
    read(entry.format->read_integer, tensor.integers);
  else
    tensor.unread = entry.dtype;
  return tensor;
}

}  // namespace

std::vector<Tensor> read_safetensors(const std::string& path) {
  std::ifstream in = open(path);
  const Json header = read_header(path, in);
  const auto begin = in.tellg();
  const auto end = in.seekg(0, std::ios::end).tellg();
  in.seekg(begin);
  const std::string data = read_bytes(path, in, static_cast<std::size_t>(end - begin));
  metadata_of(path, header);  // or throws
  const std::vector<Entry> entries = parse_entries(path, header, data.size());
  check_coverage(path, entries, data.size());
  std::vector<Tensor> tensors;
  for (const Entry& entry : entries) tensors.push_back(read_tensor(entry, data));
  return tensors;
}

Metadata read_safetensors_metadata(const std::string& path) {
  std::ifstream in = open(path);
  return metadata_of(path, read_header(path, in));
}

void write_safetensors(const Output& output, const std::vector<Tensor>& tensors,
                       Metadata metadata) {
  write_file(output,
             [&](std::ostream& out) { write_safetensors(out, tensors, std::move(metadata)); });
}

void write_safetensors(std::ostream& out, const std::vector<Tensor>& tensors, Metadata metadata) {
  metadata.emplace("format", "pt");
  Json header = {{kMetadata, metadata}};
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const std::uint64_t bytes = bytes_of(tensor);
    header[tensor.name] = {{"dtype", tensor.is_integer() ? "I64" : "F32"},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data start aligned

  const std::uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const Tensor& tensor : tensors) {
    const char* const data = tensor.is_integer()
                                 ? reinterpret_cast<const char*>(tensor.integers.data())
                                 : reinterpret_cast<const char*>(tensor.values.data());
    out.write(data, static_cast<std::streamsize>(bytes_of(tensor)));
  }
}

std::size_t bytes_of(const Tensor& tensor) {
  return tensor.values.size() * sizeof(float) + tensor.integers.size() * sizeof(std::int64_t);
}

std::string quoted(const std::string& name) {
  constexpr std::size_t kMost = 60;
  const std::string shown = name.size() > kMost ? name.substr(0, kMost) + "..." : name;
  return Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace shakedown
