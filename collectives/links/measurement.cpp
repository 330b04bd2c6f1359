#include "collectives/links/measurement.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/mpi_session.hpp"
#include "common/text_table.hpp"

namespace shakedown::collectives {
namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

LinkMeasurement::LinkMeasurement(const NodeMap& nodes, Backend& backend, MpiSession& session,
                                 LinkMessages& messages, LinkRecords& records, Judging& judging)
    : nodes_(nodes),
      backend_(backend),
      session_(session),
      messages_(messages),
      records_(records),
      judging_(judging),
      units_(units_of(session, backend)),
      paths_(paths_of(session, nodes, units_)),
      observer_(nodes, units_, paths_, *backend.world) {}

void LinkMeasurement::measure_messages(bool alone, LinkResults& results) {
  LinkMeter meter(backend_, session_, nodes_, messages_);
  const auto rounds = round_robin(session_.world_size());
  Progress progress(alone ? "pairs alone" : "pairs at once", static_cast<long>(rounds.size()),
                    "rounds", session_.is_root());
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    const LinkRound measured = meter.measure(rounds[round], alone);
    records_.write(measured.links);
    append(results.links, measured.links);
    for (const LinkFigure& figure : measured.figures)
      judging_.add(observer_.of(figure), records_.record());
    progress.update(static_cast<long>(round) + 1);
  }
  append(results.corruptions, meter.corruptions());
}

void LinkMeasurement::measure_copies(LinkResults& results) {
  const std::vector<int> per_node = nodes_.ranks_per_node();
  const int most = *std::max_element(per_node.begin(), per_node.end());
  if (backend_.kind != BackendKind::gpu || most < 2) return;
  if (!copies_)
    copies_ = std::make_unique<PeerCopies>(backend_, session_, nodes_, paths_, messages_);
  results.copies = copies_->measure();
  for (std::size_t i = 0; i < results.copies.size(); ++i)
    judging_.add(observer_.of(results.copies[i]), records_.record(), static_cast<int>(i));
  measure_slow_copies_again(results);
  append(results.remarks, copies_->remarks());
  append(results.corruptions, copies_->corruptions());
}

/// What seemed slow may have been what else the machine did: the judge says who, and how often.
void LinkMeasurement::measure_slow_copies_again(LinkResults& results) {
  for (auto slow = judging_.slow(); !slow.empty(); slow = judging_.slow()) {
    results.remarks.push_back(
        fmt::format("measured again, as it seemed slow: {} figures", slow.size()));
    for (const int i : slow) {
      LinkFigure& figure = results.copies[static_cast<std::size_t>(i)];
      const int look = figure.look + 1;
      figure = copies_->measure_again(figure);
      figure.look = look;
      judging_.add(observer_.of(figure), records_.record(), i);
    }
  }
}

LinkResults LinkMeasurement::measure(bool alone) {
  LinkResults results;
  measure_messages(false, results);
  if (alone) measure_messages(true, results);
  measure_copies(results);
  if (nodes_.names.size() == 1) return results;
  Splits splits = measure_splits(nodes_, backend_, session_, messages_);
  records_.write(splits.measured);
  for (const Split& split : splits.measured)
    if (split.scope != "without_node")
      judging_.add(observer_.of(split, 8 * messages_.settings().words), records_.record());
  results.splits = std::move(splits.measured);
  append(results.corruptions, splits.corruptions);
  return results;
}

}  // namespace shakedown::collectives
