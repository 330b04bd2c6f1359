#include "launch/node/soak/capsule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "common/output_file.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {
namespace {

/// Another number where tiles have other hashes, or a seed other operands.
constexpr const char* kFormat = "shakedown product capsule 2";
constexpr const char* kIntegers = "integers";
constexpr const char* kFullEntropy = "full_entropy";

/// 64 bits as text: a reader of JSON may have no more than 53.
std::string hex(std::uint64_t bits) { return fmt::format("0x{:016x}", bits); }

/// Reads keys, and names the one that is wrong.
class Reader {
 public:
  Reader(const Json& json, const std::string& file) : json_(json), file_(file) {
    if (!json.is_object())
      throw UsageError(file + ": must be a JSON object, as bin/soak writes it");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& allowed) const {
    throw UsageError(fmt::format("{}: {}: {}", file_, key, allowed));
  }
  bool has(const std::string& key) const { return json_.contains(key); }
  std::string text(const std::string& key) const {
    if (!has(key) || !json_[key].is_string()) refuse(key, "must be a text");
    return json_[key].get<std::string>();
  }
  std::int64_t whole(const std::string& key, std::int64_t least, std::int64_t most) const {
    const bool is_whole = has(key) && json_[key].is_number_integer();
    const auto value = is_whole ? json_[key].get<std::int64_t>() : least - 1;
    if (value < least || value > most)
      refuse(key, fmt::format("must be a whole number from {} to {}", least, most));
    return value;
  }
  std::uint64_t bits(const std::string& key) const {
    const std::string value = text(key);
    char* end = nullptr;
    const std::uint64_t parsed = std::strtoull(value.c_str(), &end, 16);
    if (value.size() != 18 || value.rfind("0x", 0) != 0 || *end != '\0')
      refuse(key, "must be 0x and 16 hexadecimal digits");
    return parsed;
  }
  std::optional<std::uint64_t> bits_if_known(const std::string& key) const {
    return has(key) ? std::optional(bits(key)) : std::nullopt;
  }

 private:
  const Json& json_;
  const std::string& file_;
};

ProductType type_of(const Reader& reader) {
  const std::string name = reader.text("type");
  for (const ProductType type : all_product_types())
    if (name == name_of(type)) return type;
  reader.refuse("type", "must be fp64, fp32, tf32, fp16, bf16, fp8 or int8");
}

std::int64_t edge(const Reader& reader, const char* key) {
  const std::int64_t length = reader.whole(key, kTileEdge, 1 << 20);
  if (length % kTileEdge != 0)
    reader.refuse(key, fmt::format("must be a multiple of {}", kTileEdge));
  return length;
}

void add_if_known(Json& json, const char* key, const std::optional<std::uint64_t>& bits) {
  if (bits) json[key] = hex(*bits);
}

}  // namespace

Json to_json(const Capsule& capsule) {
  Json json{{"format", kFormat},
            {"seed", hex(capsule.seed)},
            {"operands", capsule.operands == Operands::integers ? kIntegers : kFullEntropy},
            {"type", name_of(capsule.spec.type)},
            {"m", capsule.spec.m},
            {"n", capsule.spec.n},
            {"k", capsule.spec.k},
            {"algorithm", capsule.algorithm},
            {"tile", capsule.tile}};
  add_if_known(json, "expected_hash", capsule.expected_hash);
  add_if_known(json, "found_hash", capsule.found_hash);
  if (capsule.element) json["element"] = *capsule.element;
  add_if_known(json, "expected_bits", capsule.expected_bits);
  add_if_known(json, "found_bits", capsule.found_bits);
  json["circumstances"] = capsule.circumstances;
  return json;
}

Capsule capsule_of(const Json& json, const std::string& file) {
  const Reader reader(json, file);
  if (reader.text("format") != kFormat)
    reader.refuse("format", fmt::format("must be \"{}\"; replay another one with the version of "
                                        "Shakedown that wrote it",
                                        kFormat));
  Capsule capsule;
  capsule.seed = reader.bits("seed");
  const std::string operands = reader.text("operands");
  if (operands != kIntegers && operands != kFullEntropy)
    reader.refuse("operands", fmt::format("must be {} or {}", kIntegers, kFullEntropy));
  capsule.operands = operands == kIntegers ? Operands::integers : Operands::full_entropy;
  capsule.spec = {type_of(reader), edge(reader, "m"), edge(reader, "n"),
                  reader.whole("k", 1, 1 << 24)};
  capsule.algorithm = reader.text("algorithm");
  capsule.tile = reader.whole("tile", 0, grid_of(capsule.spec).tiles() - 1);
  capsule.expected_hash = reader.bits_if_known("expected_hash");
  capsule.found_hash = reader.bits_if_known("found_hash");
  if (reader.has("element"))
    capsule.element =
        static_cast<std::uint64_t>(reader.whole("element", 0, capsule.spec.m * capsule.spec.n - 1));
  capsule.expected_bits = reader.bits_if_known("expected_bits");
  capsule.found_bits = reader.bits_if_known("found_bits");
  if (reader.has("circumstances")) {
    if (!json["circumstances"].is_object()) reader.refuse("circumstances", "must be an object");
    capsule.circumstances = json["circumstances"];
  }
  return capsule;
}

void check_capsules(const std::string& folder, int rank) {
  check_writable({"--output", fmt::format("{}/capsule-rank{}.json", folder, rank)});
}

std::string write_capsule(const std::string& folder, const std::string& name,
                          const Capsule& capsule) {
  const std::string path = fmt::format("{}/capsule-{}.json", folder, name);
  write_file({"--output", path},
             [&](std::ostream& out) { out << json_text(to_json(capsule), 1) << '\n'; });
  return path;
}

Capsule read_capsule(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw UsageError(fmt::format("--replay {}: cannot be read", path));
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded()) throw UsageError(fmt::format("--replay {}: is not JSON", path));
  return capsule_of(json, "--replay " + path);
}

}  // namespace shakedown::node
