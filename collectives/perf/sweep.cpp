#include "collectives/perf/sweep.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/perf/output.hpp"
#include "collectives/perf/plan.hpp"
#include "collectives/traffic.hpp"
#include "common/ensure.hpp"
#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {
namespace {

/// Measures the plan's rows, and prints, records and judges each.
class Sweep {
 public:
  Sweep(const PerfOptions& options, const Plan& plan, Communicator& communicator, Backend& backend,
        const MpiSession& session, NcclPath& path, Record& record, Tally& tally)
      : options_(options),
        plan_(plan),
        session_(session),
        path_(path),
        record_(record),
        tally_(tally),
        communicator_(communicator),
        nodes_(map_nodes(session.hosts())),
        units_(units_of(session, backend)),
        conditions_(conditions_of(options, plan, communicator, backend, session)),
        bench_(make_bench(communicator, backend, session, plan.bench, plan.sizes.back())) {}

  void cycle(NcclTestsJson& json) {
    Judging judging(options_.judge, session_, options_.program);
    Bars bars(options_.bars, session_, options_.program);
    judging_ = &judging;
    bars_ = &bars;
    judged_.clear();
    for (const Operation* operation : plan_.operations) {
      if (!options_.as_nccl_tests()) say(session_, fmt::format("# {}", operation->name));
      const auto rows = rows_of(*operation, plan_, communicator_.size());
      bars.start(rows);
      bench_->warm_up(rows);
      for (const Trial& row : rows) measure(row, json);
      if (const auto idle =
              idle_bars(options_.bars, *operation, bars.moves_data(), communicator_.size()))
        state(*idle);
      print_remarks();
    }
    if (options_.judges()) measure_slow_rows_again();
    conclude();
  }

  /// The worst verdict so far, on rank 0.
  Outcome outcome() const { return outcome_; }

 private:
  struct Measured {
    Measurement measurement;
    Figures figures;
  };
  Measured measure_half(const Trial& trial) {
    Measured m{bench_->measure(trial), {}};
    m.figures = figures_of(trial, m.measurement, communicator_.size(),
                           m.measurement.iterations_checked > 0);
    tally_.count_wrong(m.measurement);
    if (m.measurement.first_wrong)
      remarks_.push_back("WRONG: " + describe(*m.measurement.first_wrong, session_));
    return m;
  }

  void measure(const Trial& row, NcclTestsJson& json) {
    std::string line = row_start(row);
    json.start_row(row);
    for (bool in_place : {false, true}) {
      Trial trial = row;
      trial.in_place = in_place && row.operation->in_place;
      // Operations without an in-place form are measured once, but nccl-tests' parsers want both
      // halves.
      if (in_place && !trial.in_place && !options_.as_nccl_tests()) continue;
      auto [measured, figures] = measure_half(trial);
      tally_.count_busbw(figures.busbw_gbs);
      if (!in_place || trial.in_place) keep(trial, measured, figures);
      if (in_place && !trial.in_place && measured.wrong == 0) figures.wrong.reset();
      line += row_half(figures, options_);
      json.add_half(in_place, figures, measured);
    }
    if (options_.timestamps != 0) line += fmt::format("{:>21}", local_now());
    say(session_, line);
    json.end_row(options_.iterations);
    print_remarks();
  }

  /// Records and judges.
  void keep(const Trial& trial, const Measurement& measured, const Figures& figures) {
    Json fields = merged(conditions_, record_of(trial, measured, figures, plan_, session_));
    add_path(fields);
    if (trial.operation->name == std::string_view("all_to_all_v"))
      fields["traffic"] = Traffic::of_environment().text();
    if (!plan_.groups.empty()) {
      const std::vector<GroupRate> groups = rates_of_groups(trial, measured, plan_);
      for (const GroupRate& group : groups) fields["group_busbw_gbs"].push_back(group.busbw_gbs);
      if (trial.counts.larger() > 0) remarks_.push_back(text_of(groups));
    }
    record_.write("collective", fields);
    if (fields.contains("straggler_rank"))
      remarks_.push_back(fmt::format(
          "waited for rank {} on {}: {:.1f} us, the transfer took {:.1f} us",
          fields["straggler_rank"].get<int>(),
          session_.hosts()[fields["straggler_rank"].get<std::size_t>()],
          fields["wait_for_straggler_us"].get<double>(), fields["transfer_us_p50"].get<double>()));
    if (measured.wrong > 0) state(wrong_data(fields, measured.diagnosis));
    const auto observation = observation_of(fields, figures, communicator_, nodes_, units_);
    if (!observation) return;
    judging_->add(*observation, record_, static_cast<int>(judged_.size()));
    judged_.push_back({trial, fields});
    bars_->judge(trial, figures, *observation);
  }

  /// What is no rate.
  void state(Verdict verdict) {
    verdict.hosts = nodes_.names;
    outcome_ = std::max(outcome_, verdict.outcome);
    judging_->add(verdict, nodes_.names);
    record_.write("verdict", record_of(verdict));
    remarks_.push_back(line_of(verdict));
  }

  static Verdict wrong_data(const Json& row, const Diagnosis& diagnosis) {
    Verdict verdict{Scope::operation, name_of_row(row), Outcome::fail,
                    fmt::format("{:.0f} wrong elements, {}; the first: {}",
                                row.at("wrong_elements").get<double>(), text_of(diagnosis),
                                row.value("first_wrong", ""))};
    const operands::WrongData kind = diagnosis.foremost().kind;
    if (kind == operands::WrongData::bit_flip) verdict.class_ = Class::hardware;
    verdict.action = operands::action_of(kind);
    verdict.check = "wrong-data";
    return verdict;
  }

  /// Rows that seem slow are measured again, when what else the machine did meanwhile has passed.
  void measure_slow_rows_again() {
    int look = 1;
    for (auto slow = judging_->slow(); !slow.empty(); slow = judging_->slow()) {
      say(session_, fmt::format("# measuring again what seems slow: {} rows", slow.size()));
      ++look;
      for (const int id : slow) {
        const Row row = judged_[static_cast<std::size_t>(id)];
        const auto [measured, figures] = measure_half(row.trial);
        auto observation = observation_of(row.fields, figures, communicator_, nodes_, units_);
        ENSURE(observation.has_value(), "a row that was judged exchanges data");
        observation->look = look;
        judging_->add(*observation, record_, id);
      }
    }
  }

  void conclude() {
    const bool by_rates =
        options_.judges() && (!judged_.empty() || !options_.judge.reference.empty());
    const bool by_bars = bars_->any() && !judged_.empty();
    if (!session_.is_root() || !(by_rates || by_bars)) return;
    judge::Judgement found = by_rates ? judging_->judgement() : bars_->judgement();
    if (by_rates && by_bars) {
      judge::Judgement bars = bars_->judgement();
      std::move(bars.findings.begin(), bars.findings.end(), std::back_inserter(found.findings));
      const bool no_rates = found.would_have_found.empty() && found.job.outcome <= Outcome::unknown;
      if (bars.job.outcome > found.job.outcome || no_rates) found.job = bars.job;
    }
    outcome_ = std::max(outcome_, found.job.outcome);
    record_judgement(found, record_, Json::object());
    std::istringstream lines(judge::text_of(found));
    for (std::string line; std::getline(lines, line);) say(session_, "# " + line);
  }

  /// Under the row that they are about.
  void print_remarks() {
    for (const std::string& remark : remarks_) say(session_, "# " + remark);
    remarks_.clear();
  }

  /// The path in NCCL's log, printed when it changes.
  void add_path(Json& fields) {
    const PathLines path = path_.read();
    if (!path.transports.empty()) fields["transports"] = path.transports;
    if (!path.last) return;
    fields["algorithm"] = path.last->algorithm;
    fields["protocol"] = path.last->protocol;
    fields["channels"] = path.last->channels;
    if (path.last == last_path_) return;
    last_path_ = path.last;
    remarks_.push_back(fmt::format("path: {}, {}, {} channels; {}", path.last->algorithm,
                                   path.last->protocol, path.last->channels,
                                   fmt::join(path.transports, ", ")));
  }

  const PerfOptions& options_;
  const Plan& plan_;
  const MpiSession& session_;
  NcclPath& path_;
  Record& record_;
  Tally& tally_;
  Communicator& communicator_;
  NodeMap nodes_;
  std::vector<Unit> units_;
  Json conditions_;
  std::unique_ptr<CollectiveBench> bench_;
  std::optional<PathChoice> last_path_;
  std::vector<std::string> remarks_;
  struct Row {
    Trial trial;
    Json fields;
  };
  std::vector<Row> judged_;     // of this cycle
  Judging* judging_ = nullptr;  // of this cycle
  Bars* bars_ = nullptr;
  Outcome outcome_ = Outcome::pass;
};

}  // namespace

ExitCode sweep(const PerfOptions& options, Plan plan, Backend& backend, const MpiSession& session,
               NcclPath& path, Record& record) {
  Communicator& all = choose_transport(options.transport, backend);
  const auto group =
      plan.groups.empty()
          ? nullptr
          : all.split(plan.groups[static_cast<std::size_t>(session.rank())], session.rank());
  Communicator& communicator = group ? *group : all;
  check_transport(options, plan, communicator);
  limit_types(plan, options, communicator, backend, session);
  const std::string remark = limit_sizes(
      plan, CollectiveBench::largest_possible(communicator, backend, session, options.aggregate));
  Tally tally{plan.min_mean_busbw_gbs};
  const Json devices = devices_of(plan, backend, session);
  NcclTestsJson json(session.is_root() ? options.json : "", options, plan, backend, devices);
  say(session, remark);
  say(session, preamble(options, plan, communicator, backend, devices) + table_header(options));
  const auto free_bytes = [&] { return static_cast<double>(backend.device->memory().free_bytes); };
  const double before = free_bytes();
  Sweep rows(options, plan, communicator, backend, session, path, record, tally);
  const double allocated = free_bytes();
  for (int done = 0; options.cycles == 0 || done < options.cycles; ++done) rows.cycle(json);
  std::vector<double> taken{backend.world_bytes, before - allocated, allocated - free_bytes()};
  for (double& bytes : taken) bytes = std::ranges::max(session.all_gather(bytes));  // as nccl-tests
  if (backend.kind == BackendKind::cpu) taken.clear();
  say(session, footer(options, tally, taken));
  json.finish(tally);
  return exit_code_of(std::max(rows.outcome(), tally.outcome()));
}

void relaunch_for_gpus(const PerfOptions& options, int argc, char** argv) {
  if (options.ranks_of_process() == 1 || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ||
      !launched_with_others().empty())
    return;
  const std::string ranks = std::to_string(options.ranks_of_process());
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  // bin/all_reduce_perf is a link: its name selects the operation.
  const std::string program = folder / options.program;
  const std::string launcher = folder.parent_path() / "launch/mpi";
  std::vector<const char*> line{launcher.c_str(), "-n", ranks.c_str(), program.c_str()};
  line.insert(line.end(), argv + 1, argv + argc);
  line.insert(line.end(), {"--ngpus", "1", "--nthreads", "1", nullptr});  // the last one counts
  execv(launcher.c_str(), const_cast<char* const*>(line.data()));
  std::fprintf(stderr,
               "error: %s ranks: %s: %s; in place of a copy of the program use a link to it (ln "
               "-s), or start it "
               "by mpirun -n %s\n",
               ranks.c_str(), launcher.c_str(), std::strerror(errno), ranks.c_str());
  std::exit(2);
}

Bars::Bars(const BarOptions& options, const MpiSession& session, const std::string& program)
    : options_(options), judging_({}, session, program) {
  if (options.min_busbw_gbs > 0) judging_.bar("collective/*/busbw", options.min_busbw_gbs, {});
  if (options.max_latency_us > 0) judging_.bar("collective/*/latency", {}, options.max_latency_us);
}

void Bars::start(const std::vector<Trial>& rows) {
  smallest_.clear();
  for (const Trial& row : rows) {
    if (row.counts.larger() > 0) smallest_.emplace(row.type, row.requested_bytes);
    largest_ = row.requested_bytes;
  }
}

void Bars::judge(const Trial& row, const Figures& figures, const judge::Observation& observation) {
  const auto add = [&](const char* figure, const char* unit, double value) {
    judge::Observation shown = observation;
    shown.metric = fmt::format("collective/{}/{}", row.operation->name, figure);
    shown.unit = unit;
    shown.samples = {value};
    judging_.add(shown, unrecorded_);
  };
  if (options_.min_busbw_gbs > 0 && row.requested_bytes == largest_)
    add("busbw", "GB/s", figures.busbw_gbs);
  if (options_.max_latency_us > 0 && row.requested_bytes == smallest_.at(row.type))
    add("latency", "us", figures.time_us);
}

std::optional<Verdict> idle_bars(const BarOptions& options, const Operation& operation,
                                 bool moves_data, int ranks) {
  std::string bars;
  if (options.min_busbw_gbs > 0) bars += fmt::format(" --min-busbw {:g}", options.min_busbw_gbs);
  if (options.max_latency_us > 0)
    bars += fmt::format(" --max-latency {:g}", options.max_latency_us);
  if (bars.empty() || (moves_data && ranks > 1)) return std::nullopt;
  Verdict verdict{Scope::operation, operation.name, Outcome::inconclusive, bars.substr(1) + ": ",
                  Class::config};
  verdict.check = "bar";
  verdict.cause += ranks > 1 ? "no row moves data to be judged" : "one rank exchanges nothing";
  verdict.action = ranks > 1 ? "raise --max-bytes" : "start at least 2 ranks";
  return verdict;
}

}  // namespace shakedown::collectives
