#include "launch/node/soak/evidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/ballot.hpp"
#include "common/ensure.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/record.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/placing.hpp"

namespace shakedown::node {
namespace {

using Votes = std::span<const std::uint64_t* const>;

/// Whether a juror's turns are steady and alike.
bool is_consistent(Votes turns) {
  return std::ranges::all_of(turns, [&](const std::uint64_t* vote) {
    return vote != nullptr && turns.front() != nullptr && *vote == *turns.front();
  });
}

std::string no_majority(std::size_t jurors) {
  return jurors == 2 ? "two GPUs differ, both steadily" : "no hash has a majority of the GPUs";
}

}  // namespace

Ruling vote(std::span<const TileRecord> votes, std::uint32_t turns) {
  ENSURE(turns > 0 && votes.size() % turns == 0, "each juror has all turns");
  const std::size_t jurors = votes.size() / turns;
  std::vector<const std::uint64_t*> hashes;  // the unsteady have no vote
  for (const TileRecord& one : votes) hashes.push_back(one.differing == 0 ? &one.first : nullptr);
  std::vector<const std::uint64_t*> consistent;  // a vote of each juror that has one
  Ruling ruling;
  for (std::size_t juror = 0; juror < jurors; ++juror)
    if (is_consistent(Votes(hashes).subspan(juror * turns, turns)))
      consistent.push_back(hashes[juror * turns]);
    else
      ruling.wrong.push_back(static_cast<int>(juror));
  const bool any_steady =
      std::ranges::any_of(hashes, [](const auto* hash) { return hash != nullptr; });
  const Ballot ballot = any_steady ? count_votes(hashes) : Ballot();
  std::uint32_t first = turns;  // turn that is unsteady or outvoted
  for (std::size_t at = 0; at < votes.size(); ++at)
    if (hashes[at] == nullptr || *hashes[at] != *hashes[ballot.leader])
      first = std::min(first, static_cast<std::uint32_t>(at % turns));
  ruling.turn = first % turns;
  if (ruling.wrong.size() == jurors && jurors > 1)
    return {{},
            {},
            "every GPU differs from itself: the products are not reproducible here",
            ruling.turn};
  if (any_steady && (ballot.majority || (jurors == 1 && ballot.unanimous)))
    ruling.right = *hashes[ballot.leader];
  else if (jurors == 2 && consistent.size() == 1)
    ruling.right = *consistent.front();
  else if (jurors > 1)
    return {{}, {}, no_majority(jurors), ruling.turn};
  ruling.by_turns = jurors == 1 && !ruling.wrong.empty() &&
                    std::ranges::none_of(hashes, [](const auto* hash) { return hash == nullptr; });
  for (const std::size_t at : ballot.outvoted) ruling.wrong.push_back(static_cast<int>(at / turns));
  std::ranges::sort(ruling.wrong);
  ruling.wrong.erase(std::unique(ruling.wrong.begin(), ruling.wrong.end()), ruling.wrong.end());
  return ruling;
}

TileVotes vote_by_tile(std::span<const std::vector<TileRecord>> records, std::uint32_t turns) {
  TileVotes all;
  if (records.empty()) return all;
  const std::size_t tiles = records.front().size() / turns;
  std::vector<TileRecord> votes(records.size() * turns);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (std::size_t at = 0; at < votes.size(); ++at)
      votes[at] = records[at / turns].at(at % turns * tiles + tile);
    Ruling ruling = vote(votes, turns);
    all.right.push_back(ruling.right);
    if (!ruling.agreed())
      all.findings.push_back({static_cast<std::int64_t>(tile), std::move(ruling)});
  }
  std::ranges::stable_sort(all.findings, {},
                           [](const TileFinding& one) { return one.ruling.turn; });
  return all;
}

TileRecord digest_of(std::span<const TileRecord> records) {
  TileRecord digest;
  for (std::size_t tile = 0; tile < records.size(); ++tile) {
    digest.first += number_format::hash(records[tile].first, tile);
    digest.differing = std::max(digest.differing, records[tile].differing);
  }
  return digest;
}

namespace {

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

Conclusion about_all(const std::string& why, const std::string& action) {
  return {undecided(Class::software, why, action), -1};
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
std::vector<Conclusion> refereed(std::span<const Look> looks) {
  std::vector<int> refuted;
  std::vector<int> unsteady;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (looks[i].beyond_bound > 0) refuted.push_back(static_cast<int>(i));
    if (looks[i].differing > 0) unsteady.push_back(static_cast<int>(i));
  }
  const bool by_cpu = !refuted.empty();
  const std::vector<int>& accused = by_cpu ? refuted : unsteady;
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
                    const Reruns& reruns, const HostTile* host) {
  LookedAt seen;
  Look& look = seen.look;
  const auto keep = [&](std::uint64_t hash) {
    look.hash = hash;
    seen.bytes = rig.tile_bytes(tile);
  };
  std::uint64_t hash = 0;
  do {
    rig.run_checked(0, 0);
    hash = rig.record(0, tile).first;
    ++look.reruns;
    if (hash != right.value_or(hash) && ++look.differing == 1) keep(hash);
    if (!right) right = hash;
  } while (look.reruns < reruns.most && look.differing < reruns.enough && !reruns.stopped());
  if (look.differing == 0) keep(hash);
  look.hash_disagrees = hash_of_tile(seen.bytes, rig.draw().seed) != look.hash ? 1 : 0;
  if (host == nullptr) return seen;
  look.beyond_bound =
      static_cast<int>(beyond_bound(*host, seen.bytes, result_type(rig.spec().type)).size());
  // All re-runs had the hash of bytes that are refuted.
  if (look.beyond_bound > 0 && look.differing == 0) look.differing = look.reruns;
  return seen;
}

std::vector<Conclusion> conclude(const Ruling& ruling, std::span<const Look> looks) {
  if (auto own = wrong_hashes(looks); !own.empty()) return own;
  if (!ruling.undecided.empty()) return refereed(looks);
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

constexpr std::uint32_t kFurtherTurns = 1 << 19;  // the first of them; no batch has it

/// One tile of a product on which there is no agreement: looked at again by all jurors.
class Inquiry {
 public:
  /// Collective, and so is all of it.
  Inquiry(ProductRig& rig, const Suspicion& suspicion, const std::vector<TileRecord>& records,
          const MpiSession& jurors)
      : rig_(rig), jurors_(jurors), suspicion_(suspicion), records_(jurors.all_gather(records)) {
    TileVotes votes = vote_by_tile(records_, static_cast<std::uint32_t>(suspicion.turns.size()));
    if (votes.findings.empty()) {  // all have the same hashes: it is the known answer that differs
      tile_ = static_cast<std::int64_t>(std::ranges::max(suspicion.refuted));
      ruling_ = {{}, {}, "the result is not the known answer", suspicion.refuted_turn};
      return;
    }
    tiles_ = votes.findings.size();
    if (jurors.world_size() == 1 && turned()) votes = hear_further_turns();
    tile_ = votes.findings.front().tile;
    ruling_ = votes.findings.front().ruling;
    right_ = std::move(votes.right);
  }

  /// What concerns this rank; what concerns all of them on the first one.
  std::vector<Mismatch> mismatches() {
    examine();
    if (conclusions_.empty() && suspicion_.operands != Operands::integers) {
      // Rounding hides what integers show, at the same tile.
      Inquiry exact(*this);
      exact.suspicion_.operands = Operands::integers;
      exact.records_.clear();  // they are of others, and so is what is right
      exact.right_.clear();
      exact.examine();
      if (!exact.conclusions_.empty()) return exact.concluded();
    }
    if (conclusions_.empty()) conclusions_ = refuted_once(suspicion_.refuted, looks_);
    if (conclusions_.empty())
      conclusions_ = {about_all(ruling_.undecided + ", within rounding of the CPU's result",
                                "run on three devices or more: the majority decides")};
    return concluded();
  }

 private:
  /// What is repeated.
  Draw draw() const {
    return {suspicion_.operands, suspicion_.seed, suspicion_.turns.at(ruling_.turn)};
  }
  DataType type() const { return result_type(rig_.spec().type); }
  bool turned() const { return std::ranges::max(suspicion_.turns) > 0; }

  /// Of one juror: one SM may have had a tile in two of three turns.
  TileVotes hear_further_turns() {
    for (std::uint32_t turn = kFurtherTurns; turn < kFurtherTurns + 4; ++turn) {
      suspicion_.turns.push_back(turn);
      rig_.fill({suspicion_.operands, suspicion_.seed, turn});
      rig_.run_checked(0, 0);
      for (const TileRecord& record : rig_.records(0)) records_.front().push_back(record);
    }
    return vote_by_tile(records_, static_cast<std::uint32_t>(suspicion_.turns.size()));
  }

  /// All repeat the product, and the CPU computes the tile where the vote needs it.
  void examine() {
    std::optional<HostTile> host;
    if (!ruling_.undecided.empty() || jurors_.world_size() < 3)
      host = host_tile(rig_.spec(), suspicion_.operands, suspicion_.seed, tile_);
    if (host && suspicion_.operands == Operands::integers) take_known_answer(*host);
    rig_.fill(draw());
    mine_ = look_again(rig_, tile_, ruling_.right, {.stopped = suspicion_.stopped},
                       host ? &*host : nullptr);
    looks_ = jurors_.all_gather(mine_.look);
    conclusions_ = conclude(ruling_, looks_);
  }

  /// In place of what most have: one SM may have had the tile in most of the turns.
  void take_known_answer(const HostTile& host) {
    expected_ = encoded(host, type());
    ruling_.right = hash_of_tile(expected_, suspicion_.seed);
    const auto tile = static_cast<std::size_t>(tile_);
    if (!right_.empty()) right_[tile] = ruling_.right;
    const std::size_t tiles = static_cast<std::size_t>(rig_.grid().tiles());
    for (std::size_t turn = suspicion_.turns.size(); turn-- > 0;)
      for (const auto& of_juror : records_)
        if (const TileRecord& record = of_juror.at(turn * tiles + tile);
            record.first != *ruling_.right || record.differing > 0)
          ruling_.turn = static_cast<std::uint32_t>(turn);  // the first that was wrong
  }

  bool is_accused(int juror) const {
    return std::ranges::count(conclusions_, juror, &Conclusion::juror) > 0;
  }

  std::vector<Mismatch> concluded() {
    exchange_contents();
    if (expected_.empty() && ruling_.right && is_accused(jurors_.rank()))
      expected_ = right_in_other_turn();
    std::vector<Mismatch> mismatches;
    for (const Conclusion& conclusion : conclusions_)
      if (conclusion.juror == jurors_.rank() || (conclusion.juror < 0 && jurors_.is_root())) {
        mismatches.push_back(mismatch_of(conclusion));
        if (conclusion.juror >= 0) place(mismatches.back());
      }
    return mismatches;
  }

  /// The bytes of the accused, and those of a juror that is right.
  void exchange_contents() {
    const auto right = std::ranges::find_if(looks_, [&](const Look& look) {
      return ruling_.right == look.hash && look.hash_disagrees == 0;
    });
    const int source = right == looks_.end() ? -1 : static_cast<int>(right - looks_.begin());
    const bool sends = source == jurors_.rank() || is_accused(jurors_.rank());
    contents_ = jurors_.all_gather(sends ? mine_.bytes : std::vector<std::byte>());
    if (source >= 0) expected_ = contents_[static_cast<std::size_t>(source)];
  }

  /// The tile's bytes from the first of the other turns in which this GPU has it right now; empty:
  /// none.
  std::vector<std::byte> right_in_other_turn() {
    for (const std::uint32_t turn : suspicion_.turns) {
      if (turn == draw().turn) continue;
      rig_.fill({suspicion_.operands, suspicion_.seed, turn});
      rig_.run_checked(0, 0);
      if (rig_.record(0, tile_).first == ruling_.right) return rig_.tile_bytes(tile_);
    }
    return {};
  }

  /// `look`: null where it is about all.
  Capsule capsule_for(const Look* look) const {
    Capsule capsule;
    capsule.seed = suspicion_.seed;
    capsule.operands = suspicion_.operands;
    capsule.turn = draw().turn;
    capsule.spec = rig_.spec();
    capsule.algorithm = rig_.algorithm();
    capsule.tile = tile_;
    capsule.expected_hash = ruling_.right;
    if (!capsule.expected_hash && !expected_.empty())
      capsule.expected_hash = hash_of_tile(expected_, capsule.seed);
    if (look != nullptr && look->hash != capsule.expected_hash) capsule.found_hash = look->hash;
    return capsule;
  }

  /// The first element of the tile whose bits differ, as the capsule has it.
  void add_element(Capsule& capsule, const std::vector<std::byte>& found) const {
    const TileGrid& grid = rig_.grid();
    if (expected_.size() != found.size()) return;
    const auto differs = std::mismatch(found.begin(), found.end(), expected_.begin());
    if (differs.first == found.end()) return;
    const std::int64_t index = (differs.first - found.begin()) / grid.element_bytes;
    const std::int64_t row = tile_ / grid.across() * kTileEdge + index / kTileEdge;
    const std::int64_t column = tile_ % grid.across() * kTileEdge + index % kTileEdge;
    const auto at = static_cast<std::size_t>(index);
    capsule.element = static_cast<std::uint64_t>(row * grid.columns + column);
    capsule.expected_bits = element_bits(expected_, at, grid.element_bytes);
    capsule.found_bits = element_bits(found, at, grid.element_bytes);
  }

  /// Adds to what is concluded of this rank where its product comes from.
  void place(Mismatch& mismatch) {
    if (!turned() || right_.empty() || !ruling_.right || mine_.look.hash_disagrees != 0) return;
    rig_.fill(draw());
    const ProductAttempts attempts = try_product(
        rig_, tile_, right_, {mine_.look.reruns, mine_.look.differing}, suspicion_.stopped);
    const Judgement placing =
        place_product(attempts, rig_.device().kind() == BackendKind::gpu ? "SM" : "core");
    mismatch.cause += "; " + placing.cause;
    mismatch.action = placing.action;
    if (attempts.cured_by.size() == 1) mismatch.sm = attempts.cured_by.front();
  }

  Mismatch mismatch_of(const Conclusion& conclusion) const {
    const bool one = conclusion.juror >= 0;
    const auto juror = static_cast<std::size_t>(std::max(conclusion.juror, 0));
    const Look* look = one ? &looks_[juror] : nullptr;
    Capsule capsule = capsule_for(look);
    if (one) add_element(capsule, contents_[juror]);
    const TileGrid& grid = rig_.grid();
    Mismatch mismatch;
    mismatch.operation = suspicion_.number;
    mismatch.where = fmt::format("tile {},{}", tile_ / grid.across(), tile_ % grid.across());
    if (tiles_ > 1)
      mismatch.where += fmt::format(" and {} more tile{}", tiles_ - 1, tiles_ == 2 ? "" : "s");
    if (capsule.element)
      mismatch.where += fmt::format(", element {},{}",
                                    *capsule.element / static_cast<std::uint64_t>(grid.columns),
                                    *capsule.element % static_cast<std::uint64_t>(grid.columns));
    if (capsule.turn > 0) mismatch.where += fmt::format(", in turn {}", capsule.turn);
    mismatch.index =
        capsule.element ? capsule.element : std::optional(static_cast<std::uint64_t>(tile_));
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

  ProductRig& rig_;
  const MpiSession& jurors_;
  Suspicion suspicion_;
  std::vector<std::vector<TileRecord>> records_;     // by juror
  std::int64_t tile_ = 0;                            // that is looked at
  Ruling ruling_;                                    // on it
  std::size_t tiles_ = 1;                            // on which there is no agreement
  std::vector<std::optional<std::uint64_t>> right_;  // by tile, where the votes differ; else empty
  LookedAt mine_;
  std::vector<Look> looks_;  // by juror
  std::vector<Conclusion> conclusions_;
  std::vector<std::byte> expected_;               // the tile's bytes; empty: not known
  std::vector<std::vector<std::byte>> contents_;  // by juror; empty but of the accused
};

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
  return Inquiry(rig, suspicion, records, jurors).mismatches();
}

}  // namespace shakedown::node
