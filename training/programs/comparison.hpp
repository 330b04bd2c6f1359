// Measures configurations, interleaved, in one job, and compares each with `none` and with one rank
// alone.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/measure/link_sweep.hpp"
#include "training/measure/records.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {

// The configurations that bin/compare measures, and their order.

struct Configuration {
  StepOptions options;
  int ranks = 1;        // the job's first
  std::string setting;  // that it differs in from plain ddp (compare_options.hpp), or empty

  const std::string& strategy() const { return options.strategy.strategy; }
};

/// "ddp, 25 MiB", or of a setting "ddp, no-overlap".
std::string strategy_label(const Configuration& configuration);
/// "ddp, 25 MiB on 4 ranks".
std::string label_of(const Configuration& configuration);

/// Configurations of one model, precision and batch: measured interleaved and compared with one
/// another. The first is `none` on one rank, and each number of ranks has its `none`, requested or
/// not; settings have their plain ddp.
using Bench = std::vector<Configuration>;

/// What a job has, where strategies need it.
struct JobRanks {
  BackendKind backend = BackendKind::cpu;
  int count = 1;
  int peers = 0;         // its first ranks whose GPUs can be peers (common/communicator.hpp)
  std::string no_peers;  // why no more can
};

/// Collective. Looks for peers only where all strategies are compared.
JobRanks ranks_of(const CompareOptions& options, Backend& backend, const MpiSession& session);

/// All combinations of the options' lists that a strategy can run, each once, and all of a named
/// strategy that can run none; a bucket cap counts only where there are buckets. All ranks of the
/// job compute where the options name no number. Throws UsageError naming a setting that changes
/// nothing, unless all of them were requested.
std::vector<Bench> benches_of(const CompareOptions& options, const JobRanks& job);

/// The order of a round over `count` configurations: rotated from round to round, so that a drift
/// of the machine meets all of them alike.
std::vector<std::size_t> turns(std::size_t count, int round, int rounds);

/// What all configurations of a job share.
struct Job {
  const CompareOptions& options;
  const Dataset& data;
  Backend& backend;
  const MpiSession& session;
  Record& record;
};

/// Records the strategies that no bench has on a number of ranks, as they need more or peers.
/// Returns them, precisions that the backend computes in another and the switches of --settings all
/// that change nothing, with the reasons; "" if there are none.
std::string record_left_out(const CompareOptions& options, const JobRanks& ranks,
                            const std::vector<Bench>& benches, Record& record);

/// One configuration measured once.
struct Round {
  Throughput throughput;
  Json exchange;    // sums_of_exchanges()
  Profile profile;  // once the round is finished, of the last round the steps alone
  // Known once what it is compared with is measured; ratios of images/s, within the round,
  // with what was measured in it.
  Breakdown breakdown;
  double epoch_s = 0;
  std::optional<double> efficiency_vs_none;    // of the same ranks
  std::optional<double> efficiency_vs_single;  // of the ideal: ranks x one rank alone
  std::optional<double> speedup_vs_plain;      // of a setting
};

/// The result of one configuration; complete on rank 0.
struct Result {
  Configuration configuration;
  Identity identity;
  std::vector<Round> rounds;
  std::size_t rounds_recorded = 0;
  std::optional<Certificate> certificate;
  std::optional<Json> ready;  // of `none`: see ready_record()
  std::vector<Json> links;    // the same: see measure_links()
  std::string skipped;        // why it could not run
  std::string failure;        // what went wrong beyond the certificate

  bool measured() const { return !rounds.empty(); }
};

/// Builds the first configuration on every rank, and drops it: the steps of a GPU process's first
/// network can be 2 % shorter than those of all that follow (docs/engineering/fast-step.md), which
/// would favour whichever is measured first. Collective.
void build_discarded_network(const Bench& bench, const Job& job);

/// Every configuration `repeats` times, in rounds. One that cannot run is skipped, with its reason;
/// ranks that a configuration does not have wait. Writes the records. Collective.
std::vector<Result> compare(const Bench& bench, const Job& job);

Verdict verdict_of(const Result& result);

/// The last round's traces into one file, if it has a name.
void write_traces(const std::string& path, const std::vector<Result>& results,
                  const MpiSession& session);

/// fail when a configuration failed; usage when none of the requested strategies could run;
/// inconclusive when one was skipped or its certificate is inconclusive.
ExitCode exit_code_of(const std::vector<Result>& results,
                      const std::vector<std::string>& requested);

// The one table of bin/compare, and the verdicts below it.

/// Of the round whose step, and whose step without an exchange, are nearest to their medians; of
/// two as near, the shorter one's: medians of each term over the rounds would not add up.
const Breakdown& account_of(const Result& result);

/// The headline: the configurations compared, and the machine.
std::string headline(const Job& job);

/// The table of one bench: at most 110 columns.
std::string table_of(const std::vector<Result>& results);

/// Verdicts of what failed, was not certified or was skipped, with their causes; else the
/// certificates.
std::vector<std::string> lines_of_verdicts(const std::vector<Result>& results);

}  // namespace shakedown::training
