#include "launch/node/soak/evidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/number_format.hpp"
#include "launch/node/soak/capsule.hpp"

namespace shakedown::node {
namespace {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::vector<T> values_of(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// The tile to look at, and how many others there are like it.
struct Subject {
  TileFinding finding;
  std::size_t tiles = 0;  // on which there is no agreement
};

Subject choose(const std::vector<std::vector<TileRecord>>& records, const Suspicion& suspicion) {
  const auto findings = vote_by_tile(records);
  if (!findings.empty()) return {findings.front(), findings.size()};
  // All have the same hashes, and it is the known answer that differs.
  const double tile = *std::max_element(suspicion.refuted.begin(), suspicion.refuted.end());
  return {{static_cast<std::int64_t>(tile), {{}, {}, "the result is not the known answer"}}, 1};
}

/// What all jurors know after their second looks.
struct Case {
  const ProductRig& rig;
  Suspicion suspicion;
  Subject subject;
  std::vector<Look> looks;
  std::vector<std::byte> expected;               // the tile's bytes; empty: not known
  std::vector<std::vector<std::byte>> contents;  // by juror; empty but of the accused
};

/// Nobody is named, and nothing that all have in common.
bool is_open(const std::vector<Conclusion>& conclusions) {
  return conclusions.size() == 1 && conclusions.front().juror < 0 && conclusions.front().open;
}

struct Examination {
  std::optional<HostTile> host;
  LookedAt mine;
  std::vector<Look> looks;
  std::vector<Conclusion> conclusions;
};

/// Collective: all repeat the product, and the CPU computes the tile where the vote needs it.
Examination examine(ProductRig& rig, const Suspicion& suspicion, const TileFinding& finding,
                    const MpiSession& jurors) {
  Examination result;
  if (!finding.ruling.undecided.empty() || jurors.world_size() < 3)
    result.host = host_tile(rig.spec(), suspicion.operands, suspicion.seed, finding.tile);
  rig.fill(suspicion.operands, suspicion.seed);
  std::optional<std::uint64_t> right = finding.ruling.right;
  if (!right && result.host && suspicion.operands == Operands::integers)
    right = hash_of_tile(encoded(*result.host, result_type(rig.spec().type)));
  result.mine =
      look_again(rig, finding.tile, right, kReruns, result.host ? &*result.host : nullptr);
  result.looks = jurors.all_gather(result.mine.look);
  result.conclusions = conclude(finding.ruling, result.looks);
  return result;
}

bool is_accused(const std::vector<Conclusion>& conclusions, int juror) {
  return std::any_of(conclusions.begin(), conclusions.end(),
                     [&](const Conclusion& c) { return c.juror == juror; });
}

/// The bytes of the accused, and those of a juror that is right.
void exchange_contents(Case& known, const std::vector<Conclusion>& conclusions,
                       const LookedAt& mine, const MpiSession& jurors) {
  const auto right = std::find_if(known.looks.begin(), known.looks.end(), [&](const Look& look) {
    return known.subject.finding.ruling.right == look.hash && look.hash_disagrees == 0;
  });
  const int source =
      right == known.looks.end() ? -1 : static_cast<int>(right - known.looks.begin());
  const bool sends = source == jurors.rank() || is_accused(conclusions, jurors.rank());
  const auto texts = jurors.all_gather(sends ? bytes_of(mine.bytes) : std::string());
  for (const std::string& text : texts) known.contents.push_back(values_of<std::byte>(text));
  if (source >= 0) known.expected = known.contents[static_cast<std::size_t>(source)];
}

Capsule capsule_for(const Case& known, const Look* look) {
  Capsule capsule;
  capsule.seed = known.suspicion.seed;
  capsule.operands = known.suspicion.operands;
  capsule.spec = known.rig.spec();
  capsule.algorithm = known.rig.algorithm();
  capsule.tile = known.subject.finding.tile;
  capsule.expected_hash = known.subject.finding.ruling.right;
  if (!capsule.expected_hash && !known.expected.empty())
    capsule.expected_hash = hash_of_tile(known.expected);
  if (look != nullptr && look->hash != capsule.expected_hash) capsule.found_hash = look->hash;
  return capsule;
}

/// The first element of the tile whose bits differ, as the capsule has it.
void add_element(Capsule& capsule, const Case& known, const std::vector<std::byte>& found) {
  const TileGrid& grid = known.rig.grid();
  if (known.expected.size() != found.size()) return;
  const auto differs = std::mismatch(found.begin(), found.end(), known.expected.begin());
  if (differs.first == found.end()) return;
  const auto index = static_cast<std::size_t>(differs.first - found.begin()) /
                     static_cast<std::size_t>(grid.element_bytes);
  const auto row =
      capsule.tile / grid.across() * kTileEdge + static_cast<std::int64_t>(index) / kTileEdge;
  const auto column =
      capsule.tile % grid.across() * kTileEdge + static_cast<std::int64_t>(index) % kTileEdge;
  capsule.element = static_cast<std::uint64_t>(row * grid.columns + column);
  capsule.expected_bits = element_bits(known.expected, index, grid.element_bytes);
  capsule.found_bits = element_bits(found, index, grid.element_bytes);
}

Mismatch mismatch_of(const Conclusion& conclusion, const Case& known) {
  const bool one = conclusion.juror >= 0;
  const auto juror = static_cast<std::size_t>(std::max(conclusion.juror, 0));
  const Look* look = one ? &known.looks[juror] : nullptr;
  Capsule capsule = capsule_for(known, look);
  if (one) add_element(capsule, known, known.contents[juror]);
  const TileGrid& grid = known.rig.grid();
  Mismatch mismatch;
  mismatch.operation = known.suspicion.batch;
  mismatch.where =
      fmt::format("tile {},{}", capsule.tile / grid.across(), capsule.tile % grid.across());
  if (known.subject.tiles > 1)
    mismatch.where += fmt::format(" and {} more tiles", known.subject.tiles - 1);
  if (capsule.element)
    mismatch.where +=
        fmt::format(", element {},{}", *capsule.element / static_cast<std::uint64_t>(grid.columns),
                    *capsule.element % static_cast<std::uint64_t>(grid.columns));
  mismatch.index =
      capsule.element ? capsule.element : std::optional(static_cast<std::uint64_t>(capsule.tile));
  mismatch.expected = capsule.expected_bits ? capsule.expected_bits : capsule.expected_hash;
  mismatch.found = capsule.found_bits ? capsule.found_bits : capsule.found_hash;
  if (one) {
    mismatch.reproduced = look->differing;
    mismatch.repeats = look->reruns;
  }
  mismatch.of_all = !one;
  mismatch.outcome = conclusion.outcome;
  mismatch.class_ = conclusion.class_;
  mismatch.cause = conclusion.cause;
  mismatch.action = conclusion.action;
  mismatch.replay = to_json(capsule);
  return mismatch;
}

}  // namespace

std::vector<std::byte> encoded(const HostTile& tile, DataType type) {
  const number_format::Format format = number_format::format_of(type);
  const std::size_t width = size_of(type);
  std::vector<std::byte> bytes(tile.value.size() * width);
  for (std::size_t i = 0; i < tile.value.size(); ++i) {
    const std::uint64_t bits =
        format.exponent > 0 ? number_format::encode(format, tile.value[i])
                            : static_cast<std::uint64_t>(static_cast<std::int64_t>(tile.value[i]));
    std::memcpy(bytes.data() + i * width, &bits, width);
  }
  return bytes;
}

std::vector<Mismatch> find_evidence(ProductRig& rig, const Suspicion& suspicion,
                                    const std::vector<TileRecord>& records,
                                    const MpiSession& jurors) {
  std::vector<std::vector<TileRecord>> by_juror;
  for (const std::string& text : jurors.all_gather(bytes_of(records)))
    by_juror.push_back(values_of<TileRecord>(text));
  Case known{rig, suspicion, choose(by_juror, suspicion), {}, {}, {}};
  Examination examined = examine(rig, suspicion, known.subject.finding, jurors);
  if (is_open(examined.conclusions) && suspicion.operands == Operands::full_entropy) {
    // Rounding hides what integers show, at the same tile.
    known.suspicion.operands = Operands::integers;
    Examination exact = examine(rig, known.suspicion, known.subject.finding, jurors);
    if (is_open(exact.conclusions))
      known.suspicion.operands = suspicion.operands;
    else
      examined = std::move(exact);
  }
  if (is_open(examined.conclusions))
    if (auto seen_once = refuted_once(suspicion.refuted, examined.looks); !seen_once.empty())
      examined.conclusions = std::move(seen_once);
  known.looks = examined.looks;
  exchange_contents(known, examined.conclusions, examined.mine, jurors);
  if (known.expected.empty() && examined.host && known.suspicion.operands == Operands::integers)
    known.expected = encoded(*examined.host, result_type(rig.spec().type));
  std::vector<Mismatch> mismatches;
  for (const Conclusion& conclusion : examined.conclusions)
    if (conclusion.juror == jurors.rank() || (conclusion.juror < 0 && jurors.is_root()))
      mismatches.push_back(mismatch_of(conclusion, known));
  return mismatches;
}

}  // namespace shakedown::node
