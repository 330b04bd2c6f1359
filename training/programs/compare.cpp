// bin/compare: gradient-exchange strategies, batches, precisions and numbers of ranks in one job.
#include <nlohmann/json.hpp>

#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/comparison.hpp"
#include "training/programs/describe.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

std::string text_of(const std::vector<Result>& results) {
  std::string text = table_of(results) + "\n";
  for (const std::string& line : lines_of_verdicts(results)) text += wrapped(line, 2) + "\n";
  return text;
}

ExitCode run(const CompareOptions& options, Backend& backend, MpiSession& session, Record& record) {
  const TrainOptions& train = options.train;
  const Dataset data(train.data, train.model, false, session);
  if (!train.trace.empty() && session.is_root()) check_writable(Output{"--trace", train.trace});
  const Job job{options, data, backend, session, record};
  say(session, headline(job));
  const JobRanks ranks = ranks_of(options, backend, session);
  const auto benches = benches_of(options, ranks);
  say(session, wrapped(record_left_out(options, ranks, benches, record), 2));
  build_discarded_network(benches.front(), job);
  std::vector<Result> all;
  for (const Bench& bench : benches) {
    const std::vector<Result> results = compare(bench, job);
    if (session.is_root()) say(session, text_of(results));
    all.insert(all.end(), results.begin(), results.end());
  }
  if (!session.is_root()) return ExitCode::pass;  // rank 0 knows them all
  write_traces(train.trace, all, session);
  say(session, text_of_report(train.record));
  return exit_code_of(all, options.strategies);
}

ExitCode compare_program(CompareOptions options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.train.record},
                  {"--trace", options.train.trace},
                  {"--weights", options.train.model.weights}});
  Backend backend = open_backend(options.train.backend, session);
  take_saved_model(set, options);
  find_data(options.train);
  Record record(session.is_root() ? record_or_launchers(options.train.record) : "");
  const double own_memory =
      static_cast<double>(backend.device->memory().total_bytes) / ranks_on_device(backend, session);
  record.write("run", merged(describe_run(set, session, backend),
                             {{"device_memory_bytes", session.all_gather(own_memory)}}));
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
