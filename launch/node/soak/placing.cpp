#include "launch/node/soak/placing.hpp"

#include <algorithm>

namespace shakedown::node {

std::vector<int> helpers_of(int juror, int jurors) {
  constexpr int kHelpers = 2;
  std::vector<int> helpers;
  for (int next = 1; next <= std::min(kHelpers, jurors - 1); ++next)
    helpers.push_back((juror + next) % jurors);
  return helpers;
}

Attempts attempts_elsewhere(const MpiSession& jurors, const std::string& task,
                            const std::function<Attempts(const std::string& task)>& attempt) {
  const std::vector<std::string> tasks = jurors.all_gather(task);
  Attempts sum;
  for (int juror = 0; juror < jurors.world_size(); ++juror) {
    const std::string& given = tasks[static_cast<std::size_t>(juror)];
    if (given.empty()) continue;
    const std::vector<int> helpers = helpers_of(juror, jurors.world_size());
    const bool helps = std::count(helpers.begin(), helpers.end(), jurors.rank()) > 0;
    const Attempts mine = helps ? attempt(given) : Attempts{};
    for (const Attempts& of_one : jurors.all_gather(mine)) {
      if (juror != jurors.rank()) continue;
      sum.tried += of_one.tried;
      sum.wrong += of_one.wrong;
    }
  }
  return sum;
}

void place_by_others(const MpiSession& jurors, std::optional<PlacedError>& placed,
                     const std::string& unit,
                     const std::function<Attempts(const std::string& task)>& attempt,
                     std::vector<Mismatch>& found) {
  const Attempts elsewhere = attempts_elsewhere(jurors, placed ? placed->task : "", attempt);
  if (!placed || elsewhere.tried == 0) return;
  placed->evidence.other_gpus = elsewhere;
  found.at(placed->mismatch)
      .place(place_error(placed->evidence, unit, placed->processor), placed->before);
}

}  // namespace shakedown::node
