#include "launch/node/soak/replay.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/program.hpp"
#include "common/verdict.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/second_look.hpp"

namespace shakedown::node {
namespace {

/// The hash that the tile must have: of integers what the CPU computes, else what the capsule has
/// from the majority.
std::optional<std::uint64_t> right_hash(const Capsule& capsule) {
  if (capsule.operands == Operands::full_entropy) return capsule.expected_hash;
  const HostTile host = host_tile(capsule.spec, capsule.operands, capsule.seed, capsule.tile);
  return hash_of_tile(encoded(host, result_type(capsule.spec.type)));
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
    verdict.action = "report a defect of bin/soak; where it follows the GPU, replace that";
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
  rig.fill(capsule.operands, capsule.seed);
  const LookedAt seen =
      look_again(rig, capsule.tile, right_hash(capsule), options.repeats, nullptr);
  const auto looks = session.all_gather(seen.look);
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
