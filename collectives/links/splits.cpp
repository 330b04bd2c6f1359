#include "collectives/links/splits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "common/mpi_session.hpp"
#include "common/statistics.hpp"

namespace shakedown::collectives {
namespace {

constexpr std::uint64_t kSeed = 20261121;

constexpr std::size_t kMostLeftOut = 64;  // nodes: each time a communicator of all others is made

}  // namespace

std::vector<Grouping> groupings_of(const NodeMap& nodes) {
  const std::size_t ranks = nodes.node_of.size();
  std::vector<Grouping> groupings{{"all", {"all"}, std::vector<int>(ranks, 0)}};
  std::vector<std::string> rails;
  const int widest = *std::max_element(nodes.local_rank.begin(), nodes.local_rank.end());
  for (int rail = 0; rail <= widest; ++rail) rails.push_back(std::to_string(rail));
  groupings.push_back({"rail", rails, nodes.local_rank});
  groupings.push_back({"node", nodes.names, nodes.node_of});
  if (nodes.names.size() < 3 || nodes.names.size() > kMostLeftOut) return groupings;
  for (std::size_t left_out = 0; left_out < nodes.names.size(); ++left_out) {
    Grouping& without = groupings.emplace_back();
    without = {"without_node", {nodes.names[left_out]}, {}};
    for (int node : nodes.node_of)
      without.group_of.push_back(node == static_cast<int>(left_out) ? 1 : 0);
  }
  return groupings;
}

namespace {

/// The all-reduce of the group of this rank; `progress` is called before each.
MessageTimes time_all_reduce(Communicator& group, LinkMessages& messages,
                             const std::function<void()>& progress, WrongWords& wrong) {
  const MessageSettings& settings = messages.settings();
  const Operands operands =
      operands::make_operands(DataType::uint64, true, Reduction::sum, group.size(), kSeed);
  messages.fill(operands, group.rank());
  std::vector<double> samples;
  for (int message = 0; message < settings.warmup + settings.iterations; ++message) {
    progress();
    group.barrier();
    const double time_us = messages.time_us(group, [&](Stream& stream) {
      group.all_reduce(messages.outgoing(settings.words, message),
                       messages.incoming(settings.words), Reduction::sum, stream);
    });
    if (message >= settings.warmup) samples.push_back(time_us);
    messages.check(operands, kAllRanks, settings.words, message, wrong);
  }
  MessageTimes times = times_of(samples);
  times.wrong_words = wrong.words;
  return times;
}

void measure(const Grouping& grouping, const NodeMap& nodes, Backend& backend, MpiSession& session,
             LinkMessages& messages, std::vector<Split>& splits, std::vector<Verdict>& verdicts) {
  const auto rank = static_cast<std::size_t>(session.rank());
  const int mine = grouping.group_of[rank];
  const auto groups = static_cast<int>(grouping.names.size());

  std::vector<int> others;  // who may wait for this group
  for (std::size_t r = 0; r < grouping.group_of.size(); ++r)
    if (grouping.group_of[r] != mine) others.push_back(static_cast<int>(r));

  MessageTimes times;
  WrongWords wrong;
  const auto communicator = backend.world->split(mine, session.rank());
  if (mine < groups && communicator->size() > 1)
    times = time_all_reduce(
        *communicator, messages, [&] { session.progress(others); }, wrong);

  session.wait_idle();  // groups differ in size, and ranks that are left out have nothing to do
  const std::vector<MessageTimes> all = session.all_gather(times);
  const std::vector<std::string> complaints = session.all_gather(wrong.complaint);
  const std::vector<Diagnosis> diagnoses = session.all_gather(wrong.diagnosis);
  for (std::size_t r = 0; r < complaints.size(); ++r)
    if (!complaints[r].empty())
      verdicts.push_back({.scope = Scope::rank,
                          .name = std::to_string(r),
                          .outcome = Outcome::fail,
                          .cause = fmt::format("all_reduce, {}: {}", grouping.scope, complaints[r]),
                          .action = operands::action_of(diagnoses[r].foremost().kind),
                          .check = "wrong-data",
                          .hosts = {nodes.name_of(static_cast<int>(r))}});
  for (int group = 0; group < groups; ++group) {
    Split split{grouping.scope, grouping.names[static_cast<std::size_t>(group)]};
    std::vector<double> parts_us;  // of each the slowest rank's
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (grouping.group_of[r] != group) continue;
      split.time_us_p50 = std::max(split.time_us_p50, all[r].time_us_p50);
      split.wrong_elements += all[r].wrong_words;
      split.diagnosis.add(diagnoses[r]);
      split.ranks.push_back(static_cast<int>(r));
      parts_us.resize(static_cast<std::size_t>(all[r].parts));
      for (std::size_t part = 0; part < parts_us.size(); ++part)
        parts_us[part] = std::max(parts_us[part], all[r].parts_us[part]);
    }
    if (split.world_size() < 2) continue;
    const auto n = static_cast<double>(split.world_size());
    const double bytes = 8.0 * static_cast<double>(messages.settings().words);
    const double gb_us = 2 * (n - 1) / n * bytes / 1e3;
    split.busbw_gbs = gb_us / split.time_us_p50;
    for (const double us : parts_us) split.samples.push_back(gb_us / us);
    splits.push_back(split);
  }
}

}  // namespace

std::vector<Split> measure_splits(const NodeMap& nodes, Backend& backend, MpiSession& session,
                                  LinkMessages& messages, std::vector<Verdict>& verdicts) {
  std::vector<Split> splits;
  for (const Grouping& grouping : groupings_of(nodes))
    measure(grouping, nodes, backend, session, messages, splits, verdicts);
  return splits;
}

}  // namespace shakedown::collectives
