// bin/link_matrix: bandwidth and latency between every pair of ranks, and which of them are slow.
#include "collectives/injection.hpp"
#include "collectives/links/link_records.hpp"
#include "collectives/links/link_tables.hpp"
#include "collectives/links/measurement.hpp"
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

ExitCode run(const LinkOptions& options, Backend& backend, MpiSession& session, Record& record) {
  const int ranks = session.world_size();
  const MessageSettings settings = message_settings(options, backend.kind, ranks);
  const Injection injection = parse_injection(options.injection, ranks);
  const NodeMap nodes = map_nodes(session.hosts(), options.pretend_nodes);
  LinkRecords records(record, session.is_root() ? options.csv : "", settings, nodes, backend);
  say(session, headline(options, settings, backend, nodes));

  const auto messages = make_messages(injection, backend, session, settings);
  LinkMeasurement measurement(nodes, backend, session, *messages, records);
  const LinkResults results = measurement.measure(options.alone);
  say(session, link_tables(options, results, ranks) + split_table(results.splits));
  for (const std::string& remark : results.remarks) say(session, remark);
  for (const Verdict& verdict : results.corruptions) {
    records.write(verdict);
    say(session, line_of(verdict));
  }
  return worst(results.corruptions);
}

ExitCode link_matrix(const LinkOptions& options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.record}, {"--csv", options.csv}});
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
