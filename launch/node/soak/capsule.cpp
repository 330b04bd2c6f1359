#include "launch/node/soak/capsule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/output_file.hpp"
#include "common/usage_error.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {
namespace {

/// Another number where tiles have other hashes, or a seed other operands.
constexpr const char* kFormat = "shakedown product capsule 3";
constexpr const char* kOldFormat = "shakedown product capsule 2";  // the same operands
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

std::uint64_t old_hash_of_tile(const std::vector<std::byte>& tile) {
  // Pairs of words go to chains in rotation; a step of a chain is a bijection of it and of the
  // word.
  std::array<std::uint64_t, 256> chains{};
  for (std::size_t word = 0; word < tile.size() / 8; ++word) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &tile[8 * word], sizeof(bits));
    std::uint64_t& chain = chains[word / 2 % chains.size()];
    const std::uint64_t x = chain ^ bits;
    chain = (x ^ (x >> 35)) * 0xFF51AFD7ED558CCDU;
  }
  std::uint64_t hash = 0;
  for (std::size_t lane = 0; lane < chains.size(); ++lane)
    hash += number_format::hash(chains[lane], lane);
  return hash;
}

Json to_json(const Capsule& capsule) {
  Json json{{"format", kFormat},
            {"seed", hex(capsule.seed)},
            {"operands", capsule.operands == Operands::integers ? kIntegers : kFullEntropy},
            {"type", name_of(capsule.spec.type)},
            {"m", capsule.spec.m},
            {"n", capsule.spec.n},
            {"k", capsule.spec.k},
            {"algorithm", capsule.algorithm},
            {"turn", capsule.turn},
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
  const std::string format = reader.text("format");
  if (format != kFormat && format != kOldFormat)
    reader.refuse("format", fmt::format("must be \"{}\" or \"{}\"; replay another one with the "
                                        "version of Shakedown that wrote it",
                                        kFormat, kOldFormat));
  Capsule capsule;
  capsule.old_hash = format == kOldFormat;
  capsule.seed = reader.bits("seed");
  const std::string operands = reader.text("operands");
  if (operands != kIntegers && operands != kFullEntropy)
    reader.refuse("operands", fmt::format("must be {} or {}", kIntegers, kFullEntropy));
  capsule.operands = operands == kIntegers ? Operands::integers : Operands::full_entropy;
  capsule.spec = {type_of(reader), edge(reader, "m"), edge(reader, "n"),
                  reader.whole("k", 1, 1 << 24)};
  capsule.algorithm = reader.text("algorithm");
  if (!capsule.old_hash)
    capsule.turn = static_cast<std::uint32_t>(reader.whole("turn", 0, 1 << 30));
  if (capsule.turn > 0 && std::max(capsule.spec.m, capsule.spec.n) > kMostTiles * kTileEdge)
    reader.refuse("turn",
                  fmt::format("must be 0 where m or n is above {}", kMostTiles * kTileEdge));
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
