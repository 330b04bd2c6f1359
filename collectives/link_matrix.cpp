// bin/link_matrix: bandwidth and latency between every pair of ranks, and which of them are slow.
#include "collectives/links/link_report.hpp"
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "common/progress.hpp"

namespace shakedown::collectives {
namespace {

void measure_links(LinkMeter& meter, bool alone, MpiSession& session, LinkReport& report) {
  const auto rounds = round_robin(session.world_size());
  Progress progress(alone ? "pairs alone" : "pairs at once", static_cast<long>(rounds.size()),
                    "rounds", session.is_root());
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    report.add(meter.measure(rounds[round], alone));
    progress.update(static_cast<long>(round) + 1);
  }
}

ExitCode run(const LinkOptions& options, Backend& backend, MpiSession& session, Record& record) {
  LinkMessages messages(
      backend, message_settings(options, backend.kind, session.rank(), session.world_size()));
  const NodeMap nodes = find_nodes(session.hosts(), options.pretend_nodes);
  LinkReport report(options, nodes, backend, messages.settings(), record);
  say(session, report.headline());

  LinkMeter meter(backend, session, messages);
  measure_links(meter, false, session, report);
  if (options.alone) measure_links(meter, true, session, report);
  report.add(meter.corruptions());
  if (nodes.names.size() > 1) {
    const Splits splits = measure_splits(nodes, backend, session, messages);
    report.add(splits.measured);
    report.add(splits.corruptions);
  }
  say(session, report.tables());
  say(session, report.judge());
  return report.code();
}

ExitCode link_matrix(const LinkOptions& options, const OptionSet& set, MpiSession& session) {
  Backend backend = open_backend(options.backend, session);
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] { return run(options, backend, session, record); });
}

}  // namespace
}  // namespace shakedown::collectives

int main(int argc, char** argv) {
  using namespace shakedown;
  collectives::LinkOptions options;
  OptionSet set("link_matrix",
                "Measures the links between every pair of ranks and names those that are slow.");
  collectives::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv, [&](MpiSession& session) {
    return collectives::link_matrix(options, set, session);
  });
}
