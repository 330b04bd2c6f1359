#include "collectives/links/measurement.hpp"

#include <utility>

#include "common/mpi_session.hpp"
#include "common/progress.hpp"

namespace shakedown::collectives {
namespace {

void measure_links(LinkMeter& meter, bool alone, MpiSession& session, LinkRecords& records,
                   LinkResults& results) {
  const auto rounds = round_robin(session.world_size());
  Progress progress(alone ? "pairs alone" : "pairs at once", static_cast<long>(rounds.size()),
                    "rounds", session.is_root());
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    const std::vector<Link> links = meter.measure(rounds[round], alone);
    records.write(links);
    results.links.insert(results.links.end(), links.begin(), links.end());
    progress.update(static_cast<long>(round) + 1);
  }
}

}  // namespace

LinkResults measure_all(bool alone, const NodeMap& nodes, Backend& backend, MpiSession& session,
                        LinkMessages& messages, LinkRecords& records) {
  LinkResults results;
  LinkMeter meter(backend, session, messages);
  measure_links(meter, false, session, records, results);
  if (alone) measure_links(meter, true, session, records, results);
  results.corruptions = meter.corruptions();
  if (nodes.names.size() == 1) return results;
  Splits splits = measure_splits(nodes, backend, session, messages);
  records.write(splits.measured);
  results.splits = std::move(splits.measured);
  results.corruptions.insert(results.corruptions.end(), splits.corruptions.begin(),
                             splits.corruptions.end());
  return results;
}

}  // namespace shakedown::collectives
