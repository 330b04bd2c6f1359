#include "launch/node/soak/jury.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/ballot.hpp"

namespace shakedown::node {

Ruling vote(std::span<const TileRecord> jurors) {
  Ruling ruling;
  std::vector<const std::uint64_t*> hashes;  // the unsteady jurors have no vote
  for (std::size_t i = 0; i < jurors.size(); ++i) {
    const bool steady = jurors[i].differing == 0;
    hashes.push_back(steady ? &jurors[i].first : nullptr);
    if (!steady) ruling.wrong.push_back(static_cast<int>(i));
  }
  if (ruling.wrong.size() == jurors.size()) {
    if (jurors.size() == 1) return ruling;
    return {{}, {}, "every GPU differs from itself: the products are not reproducible here"};
  }
  const Ballot ballot = count_votes(hashes);
  const bool of_two = jurors.size() == 2;  // the steady one is right
  if (!ballot.majority && !(of_two && ballot.unanimous))
    return {
        {}, {}, of_two ? "two GPUs differ, both steadily" : "no hash has a majority of the GPUs"};
  ruling.right = *hashes[ballot.leader];
  for (const std::size_t juror : ballot.outvoted) ruling.wrong.push_back(static_cast<int>(juror));
  std::sort(ruling.wrong.begin(), ruling.wrong.end());
  return ruling;
}

std::vector<TileFinding> vote_by_tile(std::span<const std::vector<TileRecord>> records) {
  std::vector<TileFinding> findings;
  if (records.empty()) return findings;
  std::vector<TileRecord> jurors(records.size());
  for (std::size_t tile = 0; tile < records.front().size(); ++tile) {
    for (std::size_t i = 0; i < records.size(); ++i) jurors[i] = records[i].at(tile);
    Ruling ruling = vote(jurors);
    if (!ruling.agreed()) findings.push_back({static_cast<std::int64_t>(tile), std::move(ruling)});
  }
  return findings;
}

Digest digest_of(std::span<const TileRecord> records) {
  Digest digest;
  for (std::size_t tile = 0; tile < records.size(); ++tile) {
    digest.hash += number_format::hash(records[tile].first, tile);
    digest.differing = std::max<std::uint64_t>(digest.differing, records[tile].differing);
  }
  return digest;
}

namespace {

void add(Attempts& attempts, std::optional<bool> wrong) {
  if (!wrong) return;
  ++attempts.tried;
  if (*wrong) ++attempts.wrong;
}

double rate_of(const Attempts& attempts) {
  return attempts.tried > 0 ? static_cast<double>(attempts.wrong) / attempts.tried : 0;
}

std::string text_of(const Attempts& attempts) {
  return attempts.tried == 0 ? "not tried"
                             : fmt::format("{} of {}", attempts.wrong, attempts.tried);
}

Culprit culprit_of(const Evidence& e) {
  // One sick helper of two makes half of the attempts wrong.
  if (rate_of(e.other_gpus) > rate_of(e.same) / 2) return Culprit::program;
  if (e.same.tried == 0) return Culprit::unknown;
  const double highest =
      std::max({rate_of(e.same), rate_of(e.other_processors), rate_of(e.other_addresses)});
  if (highest == 0) return Culprit::transient;
  if (e.other_addresses.tried == 0) return Culprit::unknown;
  const bool elsewhere = rate_of(e.other_addresses) >= highest / 10;
  if (e.other_processors.tried == 0) return elsewhere ? Culprit::unknown : Culprit::address;
  const bool by_others = rate_of(e.other_processors) >= highest / 10;
  if (elsewhere && by_others) return Culprit::gpu;
  if (elsewhere) return Culprit::processor;
  return by_others ? Culprit::address : Culprit::pair;
}

}  // namespace

Evidence collect_evidence(Retrial& retrial, int processor, std::span<const int> processors,
                          int addresses, int repeats) {
  std::vector<int> others(processors.begin(), processors.end());
  std::erase(others, processor);
  Evidence evidence;
  for (int i = 0; i < repeats; ++i) {
    add(evidence.same, retrial.wrong(processor, 0));
    if (!others.empty())
      add(evidence.other_processors,
          retrial.wrong(others[static_cast<std::size_t>(i) % others.size()], 0));
    if (addresses > 0) add(evidence.other_addresses, retrial.wrong(processor, 1 + i % addresses));
  }
  return evidence;
}

Placing place_error(const Evidence& evidence, const std::string& unit, int processor) {
  const std::string counts = fmt::format(
      "wrong in {} on {} {}, {} on other {}s, {} at other addresses{}", text_of(evidence.same),
      unit, processor, text_of(evidence.other_processors), unit, text_of(evidence.other_addresses),
      evidence.other_gpus.tried > 0
          ? fmt::format(", {} on other GPUs", text_of(evidence.other_gpus))
          : "");
  const Culprit culprit = culprit_of(evidence);
  const auto fail = [&](const std::string& what, const char* action) {
    return Placing{culprit, Outcome::fail, Class::hardware, what + ": " + counts, action};
  };
  switch (culprit) {
    case Culprit::processor: return fail(fmt::format("sticks to {} {}", unit, processor), "RMA");
    case Culprit::address:
      return fail("sticks to the address",
                  "reset the GPU, which remaps rows; RMA if it comes back");
    case Culprit::pair:
      return fail(fmt::format("only {} {} at this address", unit, processor), "RMA");
    case Culprit::gpu:
      if (evidence.other_gpus.tried > 0)
        return fail(fmt::format("every {} and address", unit), "RMA");
      return fail(fmt::format("every {} and address", unit),
                  "run it on another one: where that is right, replace this one");
    case Culprit::transient:
      return fail("transient, not seen again", "run again for longer; RMA if it comes back");
    case Culprit::program:
      return {culprit, Outcome::inconclusive, Class::software,
              "other GPUs have it too, so it is not this one's: " + counts,
              "report it as an error of this program"};
    case Culprit::unknown: break;
  }
  return fail("could not be placed", "run again with nothing else on it");
}

}  // namespace shakedown::node
