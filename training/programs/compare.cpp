// bin/compare: gradient-exchange strategies, batches, precisions and numbers of ranks in one job.
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/comparison.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/forecast.hpp"

namespace shakedown::training {
namespace {

ExitCode run(const CompareOptions& options, Backend& backend, MpiSession& session, Record& record) {
  const Dataset data(options.train);
  data.check_ranks_agree(session);
  if (!options.train.trace.empty() && session.is_root())
    check_writable({"--trace", options.train.trace});
  const Job job{options, data, backend, session, record, epoch_images(options, data)};
  say(session, headline(job));
  const auto benches = benches_of(options, backend.kind, session.world_size());
  say(session, settings_left_out(options, backend.kind, benches));
  build_discarded_network(benches.front(), job);
  std::vector<Result> all;
  for (const Bench& bench : benches) {
    const std::vector<Result> results = compare(bench, job);
    if (session.is_root()) say(session, table_of(results, job));
    all.insert(all.end(), results.begin(), results.end());
  }
  if (session.is_root()) {
    say(session, forecast(all, job));
    write_traces(options.train.trace, all, session);
  }
  return session.is_root() ? exit_code_of(all, options.strategies)
                           : ExitCode::pass;  // rank 0 knows them all
}

ExitCode compare_program(CompareOptions options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.train.record}, {"--trace", options.train.trace}});
  Backend backend = open_backend(options.train.backend, session);
  take_saved_model(set, options);
  Record record(session.is_root() ? options.train.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] { return run(options, backend, session, record); });
}

}  // namespace
}  // namespace shakedown::training

int main(int argc, char** argv) {
  using namespace shakedown;
  training::CompareOptions options;
  OptionSet set("compare", "Compares gradient-exchange strategies in one job.");
  training::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv, [&](MpiSession& session) {
    return training::compare_program(options, set, session);
  });
}
