// bin/link_matrix: bandwidth and latency between every pair of ranks, and which of them are slow.
#include <fmt/format.h>

#include "collectives/injection.hpp"
#include "collectives/links/measurement.hpp"
#include "collectives/links/records.hpp"
#include "collectives/links/tables.hpp"
#include "common/identity.hpp"
#include "common/judge/conclusion.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

/// The bars are on what messages measure.
void set_bars(const LinkOptions& options, const Communicator& world, Judging& judging) {
  if (options.min_bandwidth_gbs > 0)
    for (const std::string by : {"network", world.transport()})
      judging.bar(fmt::format("link/{}/one_way", by), options.min_bandwidth_gbs, {});
  if (options.max_latency_us > 0) judging.bar("link/latency", {}, options.max_latency_us);
}

ExitCode conclude(const std::vector<Verdict>& corruptions, const MpiSession& session,
                  Judging& judging, LinkRecords& records) {
  for (const Verdict& verdict : corruptions) {
    judging.add(verdict, verdict.hosts);
    records.write(verdict);
    say(session, line_of(verdict));
  }
  const judge::Judgement judgement = judging.judgement();
  record_judgement(judgement, records.record(), records.identity());
  say(session, judge::text_of(judgement));
  return exit_code_of(judgement.job.outcome);
}

ExitCode run(const LinkOptions& options, Backend& backend, MpiSession& session, Record& record) {
  const int ranks = session.world_size();
  const MessageSettings settings = message_settings(options, backend.kind, ranks);
  const Injection injection = parse_injection(options.injection, ranks);
  const NodeMap nodes = map_nodes(session.hosts(), options.pretend_nodes);
  LinkRecords records(record, session.is_root() ? options.csv : "", settings, nodes, backend);
  Judging judging(options.judge, session, "link_matrix");
  set_bars(options, *backend.world, judging);
  say(session, headline(options, settings, backend, nodes));

  const auto messages = make_messages(injection, backend, session, settings);
  LinkMeasurement measurement(nodes, backend, session, *messages, records, judging);
  const LinkResults results = measurement.measure(options.alone);
  say(session, link_tables(options, results, ranks) + split_table(results.splits));
  for (const std::string& remark : results.remarks) say(session, remark);
  return conclude(results.corruptions, session, judging, records);
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
