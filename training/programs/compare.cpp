// bin/compare: gradient-exchange strategies, batches, precisions and numbers of ranks in one job.
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/comparison_details.hpp"
#include "training/programs/comparison_summary.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/forecast.hpp"
#include "training/programs/train_settings.hpp"

namespace shakedown::training {
namespace {

std::string text_of(const std::vector<Result>& results, const Job& job, bool verbose) {
  std::string text =
      table_of(results) + settings_table(results) + "\n" + summary_of(results, job.backend.kind);
  return verbose ? text + details_of(results, job) : text;
}

ExitCode run(const CompareOptions& options, Backend& backend, MpiSession& session, Record& record) {
  const TrainOptions& train = options.train;
  const Dataset data(train.data, train.model, false, session);
  for (const Output& output : {Output{"--trace", train.trace}, {"--csv", options.csv}})
    if (!output.path.empty() && session.is_root()) check_writable(output);
  const Job job{options.repeats,
                train.timing,
                train.certificate,
                train.data,
                epoch_images(options, data),
                data,
                backend,
                session,
                record};
  say(session, headline(job));
  const JobRanks ranks = ranks_of(options, backend, session);
  const auto benches = benches_of(options, ranks);
  say(session, wrapped(left_out(options, ranks, benches), 2));
  build_discarded_network(benches.front(), job);
  std::vector<Result> all;
  for (const Bench& bench : benches) {
    const std::vector<Result> results = compare(bench, job);
    if (session.is_root()) say(session, text_of(results, job, options.verbose));
    all.insert(all.end(), results.begin(), results.end());
  }
  if (!session.is_root()) return ExitCode::pass;  // rank 0 knows them all
  const std::string predicted = forecast(all, job);
  if (options.verbose) say(session, predicted);
  write_csv(options.csv, all);
  write_traces(train.trace, all, session);
  return exit_code_of(all, options.strategies);
}

ExitCode compare_program(CompareOptions options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.train.record},
                  {"--trace", options.train.trace},
                  {"--csv", options.csv}});
  Backend backend = open_backend(options.train.backend, session);
  take_saved_model(set, options);
  find_data(options.train);
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
