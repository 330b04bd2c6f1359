#include "launch/node/soak/second_look.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kReplay = "repeat it by bin/soak --replay on this GPU and on another one";

std::string reproduces(const Look& look) {
  return fmt::format("reproduces {} of {}", look.differing, look.reruns);
}

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
  return {juror, Outcome::fail, Class::hardware,
          fmt::format("{}; {}, {}", why, reproduces(look), others_of(accused, looks)), action};
}

Conclusion undecided(const std::string& why, const std::string& action) {
  return {-1, Outcome::inconclusive, Class::software, why, action};
}

/// Those whose data agree with what the host makes of them, but whose hash does not.
std::vector<Conclusion> wrong_hashes(std::span<const Look> looks) {
  std::vector<Conclusion> conclusions;
  for (std::size_t i = 0; i < looks.size(); ++i)
    if (looks[i].hash_disagrees != 0)
      conclusions.push_back(
          {static_cast<int>(i), Outcome::fail, Class::software,
           "the hash disagrees though the data agree: the host's hash of the same bytes differs",
           "report a defect of bin/soak; where it follows the GPU, replace that"});
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
  if (accused.empty()) {
    Conclusion open = undecided(ruling.undecided + ", within rounding of the CPU's result",
                                "run on three devices or more: the majority decides");
    open.open = true;
    return {open};
  }
  if (accused.size() == looks.size() && looks.size() > 1)
    return {undecided(by_cpu
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
  seen.look.hash_disagrees = hash_of_tile(seen.bytes) != seen.look.hash ? 1 : 0;
  if (host == nullptr) return seen;
  seen.look.beyond_bound =
      static_cast<int>(beyond_bound(*host, seen.bytes, result_type(rig.spec().type)).size());
  // All re-runs had the hash of bytes that are refuted.
  if (seen.look.beyond_bound > 0 && seen.look.differing == 0) seen.look.differing = reruns;
  return seen;
}

std::vector<Conclusion> conclude(const Ruling& ruling, std::span<const Look> looks) {
  if (auto own = wrong_hashes(looks); !own.empty()) return own;
  if (!ruling.undecided.empty()) return refereed(ruling, looks);
  const auto differs = [](const Look& look) { return look.differing > 0; };
  if (looks.size() > 1 && std::all_of(looks.begin(), looks.end(), differs))
    return {undecided("the re-runs differ on every device: the products are not reproducible",
                      "report a defect of bin/soak with the capsule")};
  std::vector<Conclusion> conclusions;
  for (const int juror : ruling.wrong)
    conclusions.push_back(
        wrong_gpu(juror, looks.size() == 1 ? "it differs from itself" : "the others contradict it",
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

}  // namespace shakedown::node
