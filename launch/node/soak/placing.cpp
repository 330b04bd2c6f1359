#include "launch/node/soak/placing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shakedown::node {
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

namespace {

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

Evidence collect_evidence(const Retrial& wrong, int processor, std::span<const int> processors,
                          int addresses, int repeats) {
  std::vector<int> others(processors.begin(), processors.end());
  std::erase(others, processor);
  Evidence evidence;
  for (int i = 0; i < repeats; ++i) {
    add(evidence.same, wrong(processor, 0));
    if (!others.empty())
      add(evidence.other_processors, wrong(others[static_cast<std::size_t>(i) % others.size()], 0));
    if (addresses > 0) add(evidence.other_addresses, wrong(processor, 1 + i % addresses));
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
    return Placing{failure(Class::hardware, what + ": " + counts, action), culprit};
  };
  switch (culprit) {
    case Culprit::processor: return fail(fmt::format("sticks to {} {}", unit, processor), "RMA");
    case Culprit::address:
      return fail("sticks to the address",
                  "reset the GPU, which remaps rows; RMA if it comes back");
    case Culprit::pair:
      return fail(fmt::format("only {} {} at this address", unit, processor), "RMA");
    case Culprit::gpu:
      return fail(fmt::format("every {} and address", unit),
                  evidence.other_gpus.tried > 0
                      ? "RMA"
                      : "run it on another one: where that is right, replace this one");
    case Culprit::transient:
      return fail("transient, not seen again", "run again for longer; RMA if it comes back");
    case Culprit::program:
      return {
          undecided(Class::software, "other GPUs have it too, so it is not this one's: " + counts,
                    "report it as an error of this program"),
          culprit};
    case Culprit::unknown: break;
  }
  return fail("could not be placed", "run again with nothing else on it");
}

std::vector<int> helpers_of(int juror, int jurors) {
  constexpr int kHelpers = 2;
  std::vector<int> helpers;
  for (int next = 1; next <= std::min(kHelpers, jurors - 1); ++next)
    helpers.push_back((juror + next) % jurors);
  return helpers;
}

namespace {

/// `task` repeats this rank's error; empty: it has none. What the helpers of this rank found.
Attempts attempts_elsewhere(const MpiSession& jurors, const std::string& task,
                            const std::function<Attempts(const Json& task)>& attempt) {
  const std::vector<std::string> tasks = jurors.all_gather(task);
  Attempts sum;
  for (int juror = 0; juror < jurors.world_size(); ++juror) {
    const std::string& given = tasks[static_cast<std::size_t>(juror)];
    if (given.empty()) continue;
    const std::vector<int> helpers = helpers_of(juror, jurors.world_size());
    const bool helps = std::count(helpers.begin(), helpers.end(), jurors.rank()) > 0;
    for (const Attempts& of_one :
         jurors.all_gather(helps ? attempt(Json::parse(given)) : Attempts{})) {
      if (juror != jurors.rank()) continue;
      sum.tried += of_one.tried;
      sum.wrong += of_one.wrong;
    }
  }
  return sum;
}

/// Concludes this of a mismatch.
void conclude(Mismatch& mismatch, Placing placing, const std::string& before) {
  placing.cause = before + placing.cause;
  mismatch.of_all = placing.culprit == Culprit::program;
  mismatch.conclude(std::move(placing));
}

}  // namespace

void PlacedError::place(std::vector<Mismatch>& found, std::size_t at, const Evidence& evidence,
                        int processor, const Json& task) {
  Mismatch& mismatch = found[at];
  mismatch.sm = processor;
  mismatch.reproduced = evidence.same.wrong;
  mismatch.repeats = evidence.same.tried;
  const std::string before = mismatch.cause + "; ";
  conclude(mismatch, place_error(evidence, unit_, processor), before);
  if (!task_.empty()) return;
  task_ = json_text(task);
  at_ = at;
  before_ = before;
  evidence_ = evidence;
  processor_ = processor;
}

void PlacedError::confer(const MpiSession& jurors,
                         const std::function<Attempts(const Json& task)>& attempt,
                         std::vector<Mismatch>& found) {
  evidence_.other_gpus = attempts_elsewhere(jurors, task_, attempt);
  if (!task_.empty() && evidence_.other_gpus.tried > 0)
    conclude(found.at(at_), place_error(evidence_, unit_, processor_), before_);
  task_.clear();
}

}  // namespace shakedown::node
