#include "launch/node/soak/evidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/record.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/product_placing.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kDefect =
    "report a defect of bin/soak; where it follows the GPU, replace that";
constexpr const char* kReplay = "repeat it by bin/soak --replay on this GPU and on another one";

/// "the others 0 of 200": the re-runs of those that are not accused.
std::string others_of(const std::vector<int>& accused, std::span<const Look> looks) {
  int differing = 0;
  int reruns = 0;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (std::count(accused.begin(), accused.end(), static_cast<int>(i)) > 0) continue;
    differing += looks[i].differing;
    reruns += looks[i].reruns;
  }
  return reruns == 0 ? "no other to compare with"
                     : fmt::format("the others {} of {}", differing, reruns);
}

Conclusion wrong_gpu(int juror, const std::string& why, const std::vector<int>& accused,
                     std::span<const Look> looks) {
  const Look& look = looks[static_cast<std::size_t>(juror)];
  const char* action = look.differing > 0
                           ? "replace the GPU: its products are wrong; the capsule is the evidence"
                           : kReplay;
  return {failure(Class::hardware,
                  fmt::format("{}; reproduces {} of {}, {}", why, look.differing, look.reruns,
                              others_of(accused, looks)),
                  action),
          juror};
}

Conclusion about_all(const std::string& why, const std::string& action, bool open = false) {
  return {undecided(Class::software, why, action), -1, open};
}

/// Those whose data agree with what the host makes of them, but whose hash does not.
std::vector<Conclusion> wrong_hashes(std::span<const Look> looks) {
  std::vector<Conclusion> conclusions;
  for (std::size_t i = 0; i < looks.size(); ++i)
    if (looks[i].hash_disagrees != 0)
      conclusions.push_back(
          {failure(Class::software,
                   "the hash disagrees though the data agree: the host's hash of the same bytes "
                   "differs",
                   kDefect),
           static_cast<int>(i)});
  return conclusions;
}

/// The vote did not decide: the CPU's result may, or that some differ from themselves.
std::vector<Conclusion> refereed(const Ruling& ruling, std::span<const Look> looks) {
  std::vector<int> refuted;
  std::vector<int> unsteady;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (looks[i].beyond_bound > 0) refuted.push_back(static_cast<int>(i));
    if (looks[i].differing > 0) unsteady.push_back(static_cast<int>(i));
  }
  const bool by_cpu = !refuted.empty();
  const std::vector<int>& accused = by_cpu ? refuted : unsteady;
  if (accused.empty())
    return {about_all(ruling.undecided + ", within rounding of the CPU's result",
                      "run on three devices or more: the majority decides", true)};
  if (accused.size() == looks.size() && looks.size() > 1)
    return {about_all(by_cpu
                          ? "the CPU's result refutes every device: a defect of the test or library"
                          : "every device differs from itself: the products are not reproducible",
                      "report a defect of bin/soak with the capsule")};
  std::vector<Conclusion> conclusions;
  for (const int juror : accused)
    conclusions.push_back(wrong_gpu(
        juror, by_cpu ? "the CPU's result refutes it" : "it differs from itself", accused, looks));
  return conclusions;
}

}  // namespace

LookedAt look_again(ProductRig& rig, std::int64_t tile, std::optional<std::uint64_t> right,
                    int reruns, const HostTile* host) {
  LookedAt seen;
  for (int i = 0; i < reruns; ++i) {
    rig.run_checked(0, 0);
    const std::uint64_t hash = rig.record(0, tile).first;
    if (!right) right = hash;
    const bool differs = hash != *right;
    if (differs) ++seen.look.differing;
    if ((differs && seen.look.differing == 1) || (i == reruns - 1 && seen.look.differing == 0)) {
      seen.look.hash = hash;
      seen.bytes = rig.tile_bytes(tile);
    }
  }
  seen.look.reruns = reruns;
  seen.look.hash_disagrees = hash_of_tile(seen.bytes, rig.draw().seed) != seen.look.hash ? 1 : 0;
  if (host == nullptr) return seen;
  seen.look.beyond_bound =
      static_cast<int>(beyond_bound(*host, seen.bytes, result_type(rig.spec().type)).size());
  // All re-runs had the hash of bytes that are refuted.
  if (seen.look.beyond_bound > 0 && seen.look.differing == 0) seen.look.differing = reruns;
  return seen;
}

Look look_by_old_hash(ProductRig& rig, std::int64_t tile, std::uint64_t right, int reruns) {
  Look look;
  look.reruns = reruns;
  for (int i = 0; i < reruns; ++i) {
    rig.run();
    look.hash = old_hash_of_tile(rig.tile_bytes(tile));
    if (look.hash != right) ++look.differing;
  }
  return look;
}

std::vector<Conclusion> conclude(const Ruling& ruling, std::span<const Look> looks) {
  if (auto own = wrong_hashes(looks); !own.empty()) return own;
  if (!ruling.undecided.empty()) return refereed(ruling, looks);
  const auto differs = [](const Look& look) { return look.differing > 0; };
  if (looks.size() > 1 && std::all_of(looks.begin(), looks.end(), differs))
    return {about_all("the re-runs differ on every device: the products are not reproducible",
                      "report a defect of bin/soak with the capsule")};
  std::vector<Conclusion> conclusions;
  for (const int juror : ruling.wrong)
    conclusions.push_back(wrong_gpu(juror,
                                    looks.size() > 1 ? "the others contradict it"
                                    : ruling.by_turns
                                        ? "the same product in other turns contradicts it"
                                        : "it differs from itself",
                                    ruling.wrong, looks));
  return conclusions;
}

std::vector<Conclusion> refuted_once(const std::vector<double>& refuted,
                                     std::span<const Look> looks) {
  std::vector<int> accused;
  for (std::size_t i = 0; i < refuted.size(); ++i)
    if (refuted[i] >= 0) accused.push_back(static_cast<int>(i));
  std::vector<Conclusion> conclusions;
  if (accused.size() == looks.size() && looks.size() > 1) return conclusions;
  for (const int juror : accused)
    conclusions.push_back(
        wrong_gpu(juror, "the result was not what it must be, once", accused, looks));
  return conclusions;
}

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

/// What all jurors know after their second looks.
struct Case {
  const ProductRig& rig;
  Suspicion suspicion;
  TileFinding finding;                              // on the tile that is looked at
  std::size_t tiles = 1;                            // on which there is no agreement
  std::vector<Look> looks;                          // by juror
  std::vector<std::byte> expected;                  // the tile's bytes; empty: not known
  std::vector<std::vector<std::byte>> contents;     // by juror; empty but of the accused
  std::vector<std::optional<std::uint64_t>> right;  // by tile, where the votes differ; else empty

  /// What is repeated.
  Draw draw() const {
    return {suspicion.operands, suspicion.seed, suspicion.turns.at(finding.ruling.turn)};
  }
};

Case open_case(const ProductRig& rig, const Suspicion& suspicion,
               const std::vector<std::vector<TileRecord>>& records) {
  const TileVotes votes = vote_by_tile(records, static_cast<std::uint32_t>(suspicion.turns.size()));
  const auto& findings = votes.findings;
  if (!findings.empty())
    return {rig, suspicion, findings.front(), findings.size(), {}, {}, {}, votes.right};
  // All have the same hashes, and it is the known answer that differs.
  const double tile = *std::max_element(suspicion.refuted.begin(), suspicion.refuted.end());
  return {rig,
          suspicion,
          {static_cast<std::int64_t>(tile),
           {{}, {}, "the result is not the known answer", suspicion.refuted_turn}},
          1,
          {},
          {},
          {},
          {}};
}

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
  rig.fill({suspicion.operands, suspicion.seed, suspicion.turns.at(finding.ruling.turn)});
  std::optional<std::uint64_t> right = finding.ruling.right;
  if (!right && result.host && suspicion.operands == Operands::integers)
    right = hash_of_tile(encoded(*result.host, result_type(rig.spec().type)), suspicion.seed);
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
    return known.finding.ruling.right == look.hash && look.hash_disagrees == 0;
  });
  const int source =
      right == known.looks.end() ? -1 : static_cast<int>(right - known.looks.begin());
  const bool sends = source == jurors.rank() || is_accused(conclusions, jurors.rank());
  const auto texts = jurors.all_gather(sends ? bytes_of(mine.bytes) : std::string());
  for (const std::string& text : texts) known.contents.push_back(values_of<std::byte>(text));
  if (source >= 0) known.expected = known.contents[static_cast<std::size_t>(source)];
}

/// The tile's bytes from the first of the other turns in which this GPU has it right now; empty:
/// none.
std::vector<std::byte> right_in_other_turn(ProductRig& rig, const Case& known) {
  for (const std::uint32_t turn : known.suspicion.turns) {
    Draw draw = known.draw();
    if (turn == draw.turn) continue;
    draw.turn = turn;
    rig.fill(draw);
    rig.run_checked(0, 0);
    if (rig.record(0, known.finding.tile).first == known.finding.ruling.right)
      return rig.tile_bytes(known.finding.tile);
  }
  return {};
}

Capsule capsule_for(const Case& known, const Look* look) {
  Capsule capsule;
  capsule.seed = known.suspicion.seed;
  capsule.operands = known.suspicion.operands;
  capsule.turn = known.draw().turn;
  capsule.spec = known.rig.spec();
  capsule.algorithm = known.rig.algorithm();
  capsule.tile = known.finding.tile;
  capsule.expected_hash = known.finding.ruling.right;
  if (!capsule.expected_hash && !known.expected.empty())
    capsule.expected_hash = hash_of_tile(known.expected, capsule.seed);
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

/// Adds to what is concluded of this rank where its product comes from.
void place(Mismatch& mismatch, ProductRig& rig, const Case& known, const Look& look) {
  const auto& turns = known.suspicion.turns;
  const bool turned = std::ranges::any_of(turns, [](std::uint32_t turn) { return turn > 0; });
  if (!turned || known.right.empty() || !known.finding.ruling.right || look.hash_disagrees != 0)
    return;
  rig.fill(known.draw());
  const ProductAttempts attempts =
      try_product(rig, known.finding.tile, known.right, {look.reruns, look.differing});
  const Placing placing =
      place_product(attempts, rig.device().kind() == BackendKind::gpu ? "SM" : "core");
  mismatch.cause += "; " + placing.cause;
  mismatch.action = placing.action;
  if (attempts.cured_by.size() == 1) mismatch.sm = attempts.cured_by.front();
}

Mismatch mismatch_of(const Conclusion& conclusion, const Case& known) {
  const bool one = conclusion.juror >= 0;
  const auto juror = static_cast<std::size_t>(std::max(conclusion.juror, 0));
  const Look* look = one ? &known.looks[juror] : nullptr;
  Capsule capsule = capsule_for(known, look);
  if (one) add_element(capsule, known, known.contents[juror]);
  const TileGrid& grid = known.rig.grid();
  Mismatch mismatch;
  mismatch.operation = known.suspicion.number;
  mismatch.where =
      fmt::format("tile {},{}", capsule.tile / grid.across(), capsule.tile % grid.across());
  if (known.tiles > 1) mismatch.where += fmt::format(" and {} more tiles", known.tiles - 1);
  if (capsule.element)
    mismatch.where +=
        fmt::format(", element {},{}", *capsule.element / static_cast<std::uint64_t>(grid.columns),
                    *capsule.element % static_cast<std::uint64_t>(grid.columns));
  if (capsule.turn > 0) mismatch.where += fmt::format(", in turn {}", capsule.turn);
  mismatch.index =
      capsule.element ? capsule.element : std::optional(static_cast<std::uint64_t>(capsule.tile));
  mismatch.expected = capsule.expected_bits ? capsule.expected_bits : capsule.expected_hash;
  mismatch.found = capsule.found_bits ? capsule.found_bits : capsule.found_hash;
  if (one) {
    mismatch.reproduced = look->differing;
    mismatch.repeats = look->reruns;
  }
  mismatch.of_all = !one;
  mismatch.conclude(conclusion);
  mismatch.replay = json_text(to_json(capsule));
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
  Case known = open_case(rig, suspicion, by_juror);
  Examination examined = examine(rig, suspicion, known.finding, jurors);
  if (is_open(examined.conclusions) && suspicion.operands == Operands::full_entropy) {
    // Rounding hides what integers show, at the same tile.
    known.suspicion.operands = Operands::integers;
    Examination exact = examine(rig, known.suspicion, known.finding, jurors);
    if (is_open(exact.conclusions))
      known.suspicion.operands = suspicion.operands;
    else
      examined = std::move(exact);
  }
  if (is_open(examined.conclusions))
    if (auto seen_once = refuted_once(suspicion.refuted, examined.looks); !seen_once.empty())
      examined.conclusions = std::move(seen_once);
  known.looks = examined.looks;
  if (known.suspicion.operands != suspicion.operands) known.right.clear();  // they are of others
  exchange_contents(known, examined.conclusions, examined.mine, jurors);
  if (known.expected.empty() && known.finding.ruling.right &&
      is_accused(examined.conclusions, jurors.rank()))
    known.expected = right_in_other_turn(rig, known);
  if (known.expected.empty() && examined.host && known.suspicion.operands == Operands::integers)
    known.expected = encoded(*examined.host, result_type(rig.spec().type));
  std::vector<Mismatch> mismatches;
  for (const Conclusion& conclusion : examined.conclusions)
    if (conclusion.juror == jurors.rank() || (conclusion.juror < 0 && jurors.is_root())) {
      mismatches.push_back(mismatch_of(conclusion, known));
      if (conclusion.juror >= 0) place(mismatches.back(), rig, known, examined.mine.look);
    }
  return mismatches;
}

namespace {

/// The hash that the tile must have: of integers what the CPU computes, else what the capsule has
/// from the majority.
std::optional<std::uint64_t> right_hash(const Capsule& capsule) {
  if (capsule.operands == Operands::full_entropy) return capsule.expected_hash;
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
  } else if (!capsule.expected_hash && capsule.operands == Operands::full_entropy) {
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
  const bool by_old_hash =
      capsule.old_hash && capsule.expected_hash && capsule.operands == Operands::full_entropy;
  const auto looks = session.all_gather(
      by_old_hash
          ? look_by_old_hash(rig, capsule.tile, *capsule.expected_hash, options.repeats)
          : look_again(rig, capsule.tile, right_hash(capsule), options.repeats, nullptr).look);
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
