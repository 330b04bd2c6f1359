#include "launch/node/soak/capsule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/hash.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/usage_error.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {
namespace {

/// Another number where tiles have other hashes, a seed other operands, or the file other keys.
constexpr const char* kFormat = "shakedown product capsule 4";

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
  for (const ProductType type : soaked(all_product_types()))
    if (name == name_of(type)) return type;
  reader.refuse("type", "must be fp64, fp32, tf32, fp16, bf16, fp8 or int8");
}

Operands operands_of(const Reader& reader) {
  const std::string name = reader.text("operands");
  std::vector<std::string> names;
  for (const Operands operands : all_operands()) {
    if (name == name_of(operands)) return operands;
    names.emplace_back(name_of(operands));
  }
  reader.refuse("operands", fmt::format("must be one of {}", fmt::join(names, ", ")));
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
            {"operands", name_of(capsule.operands)},
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
  json["checksum"] = hex(xxh64(json_text(json)));
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
  capsule.operands = operands_of(reader);
  capsule.spec = {type_of(reader), edge(reader, "m"), edge(reader, "n"),
                  reader.whole("k", 1, 1 << 24)};
  capsule.algorithm = reader.text("algorithm");
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
  if (to_json(capsule)["checksum"].get<std::string>() != reader.text("checksum"))
    reader.refuse("checksum",
                  "is not that of the keys from seed to found_bits: one of them was altered");
  return capsule;
}

void check_capsules(const std::string& folder, int rank) {
  check_writable({"--output", fmt::format("{}/capsule-rank{}.json", folder, rank)});
}

std::string write_capsule(const std::string& folder, const std::string& name, const Json& capsule) {
  const std::string path = fmt::format("{}/capsule-{}.json", folder, name);
  write_file({"--output", path}, [&](std::ostream& out) { out << json_text(capsule, 1) << '\n'; });
  return path;
}

Capsule read_capsule(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw UsageError(fmt::format("--replay {}: cannot be read", path));
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded()) throw UsageError(fmt::format("--replay {}: is not JSON", path));
  return capsule_of(json, "--replay " + path);
}

namespace {

/// The hash that the tile must have: of integers what the CPU computes, else what the capsule has
/// from the majority.
std::optional<std::uint64_t> right_hash(const Capsule& capsule) {
  if (capsule.operands != Operands::integers) return capsule.expected_hash;
  const HostTile host = host_tile(capsule.spec, capsule.operands, capsule.seed, capsule.tile);
  return hash_of_tile(encoded(host, result_type(capsule.spec.type)), capsule.seed);
}

Verdict verdict_of(const Look& look, const Capsule& capsule, int rank, const std::string& uuid) {
  Verdict verdict;
  verdict.scope = uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = uuid.empty() ? std::to_string(rank) : uuid;
  verdict.cause =
      fmt::format("{}reproduces {} of {}", uuid.empty() ? "" : fmt::format("rank {}: ", rank),
                  look.differing, look.reruns);
  if (look.hash_disagrees != 0) {
    verdict.outcome = Outcome::fail;
    verdict.class_ = Class::software;
    verdict.cause += ", and the hash disagrees though the data agree";
    verdict.action = kDefect;
  } else if (look.differing > 0) {
    verdict.outcome = Outcome::fail;
    verdict.class_ = Class::hardware;
    verdict.action = "repeat it on another GPU: where that passes, replace this one";
  } else if (!capsule.expected_hash && capsule.operands != Operands::integers) {
    verdict.outcome = Outcome::inconclusive;
    verdict.cause += ": the products are alike, but the capsule does not know the right result";
  }
  return verdict;
}

}  // namespace

std::vector<Verdict> verdicts_of(const std::vector<Look>& looks, const Capsule& capsule,
                                 const std::vector<std::string>& uuids) {
  const bool all =
      looks.size() > 1 && std::all_of(looks.begin(), looks.end(), [](const Look& look) {
        return look.differing > 0 && look.hash_disagrees == 0;
      });
  if (all)  // a part that is broken is not in all of them
    return {{Scope::job, "soak", Outcome::inconclusive,
             fmt::format("all {} devices differ from the capsule's result: no one of them is to "
                         "blame",
                         looks.size()),
             Class::software,
             "replay it with the library versions that the capsule names, on a device of its "
             "model; where they differ too, report it with the capsule"}};
  std::vector<Verdict> verdicts;
  for (std::size_t r = 0; r < looks.size(); ++r)
    verdicts.push_back(verdict_of(looks[r], capsule, static_cast<int>(r), uuids[r]));
  return verdicts;
}

ExitCode replay_capsule(const SoakOptions& options, Backend& backend, MpiSession& session,
                        Record& record) {
  const Capsule capsule = read_capsule(options.replay);
  choose_types(soaked(all_product_types()), {name_of(capsule.spec.type)}, *backend.device, session,
               fmt::format("--replay {}: type", options.replay));
  const auto fault =
      parse_fault(options.fault, {FaultKind::product, FaultKind::hash}, session.world_size());
  if (fault) say(session, line_of(*fault));
  const bool mine = fault && fault->rank == session.rank();
  say(session, fmt::format("replay {}: product {} {} x {} x {}, tile {}, {}", options.replay,
                           name_of(capsule.spec.type), capsule.spec.m, capsule.spec.n,
                           capsule.spec.k, capsule.tile, capsule.algorithm));
  ProductRig rig(capsule.spec, *backend.device, capsule.algorithm, 1,
                 mine ? std::optional(fault->kind) : std::nullopt);
  rig.fill({capsule.operands, capsule.seed, capsule.turn});
  const auto looks = session.all_gather(look_again(rig, capsule.tile, right_hash(capsule),
                                                   {options.repeats, options.repeats}, nullptr)
                                            .look);
  const auto uuids = session.all_gather(backend.device->identity().uuid);
  std::vector<Verdict> verdicts = verdicts_of(looks, capsule, uuids);
  for (const Verdict& verdict : verdicts) {
    record.write("verdict",
                 merged({{"backend", name_of(backend.kind)}, {"world_size", session.world_size()}},
                        record_of(verdict)));
    say(session, line_of(verdict));
  }
  return worst(verdicts);
}

}  // namespace shakedown::node
