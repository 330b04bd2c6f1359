#include "collectives/perf/sweep.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "collectives/perf/bars.hpp"
#include "collectives/perf/collective_record.hpp"
#include "collectives/perf/nccl_tests_json.hpp"
#include "collectives/perf/perf_table.hpp"
#include "collectives/perf/plan_limits.hpp"
#include "common/csv.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

/// The reference of --reference, read by rank 0 alone; none where it is empty. Collective.
std::optional<Reference> open_reference(const BarOptions& bars, const MpiSession& session) {
  if (bars.reference.empty()) return std::nullopt;
  std::string text;
  if (session.is_root()) {
    std::ifstream in(bars.reference, std::ios::binary);
    if (!in)
      throw UsageError(
          fmt::format("--reference {}: cannot be read: {}", bars.reference, std::strerror(errno)));
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  return Reference(bars.reference, session.all_gather(text).front(), bars.tolerance_percent);
}

/// Measures the plan's rows, and prints, records and judges each.
class Sweep {
 public:
  Sweep(const PerfOptions& options, const Plan& plan, Communicator& communicator, Backend& backend,
        const MpiSession& session, NcclPath& path, Record& record, Bars& bars)
      : options_(options),
        plan_(plan),
        session_(session),
        path_(path),
        record_(record),
        csv_({"--csv", session.is_root() ? options.csv : ""}, csv_columns()),
        bars_(bars),
        conditions_(conditions_of(options, plan, communicator, backend, session)),
        bench_(make_bench(plan.injection, communicator, backend, session, plan.bench,
                          plan.sizes.back())) {}

  void cycle(NcclTestsJson& json) {
    for (const Operation* operation : plan_.operations) {
      if (!options_.as_nccl_tests()) say(session_, fmt::format("# {}", operation->name));
      const auto rows = rows_of(*operation, plan_, session_.world_size());
      bars_.start(rows);
      bench_->warm_up(rows);
      for (const Trial& row : rows) measure(row, json);
      bars_.finish_operation(*operation);
      print_remarks();
    }
    judge_by_reference();
    print_remarks();
  }

 private:
  struct Measured {
    Measurement measurement;
    Figures figures;
  };
  Measured measure_half(const Trial& trial) {
    Measured m{bench_->measure(trial), {}};
    m.figures = figures_of(trial, m.measurement, session_.world_size(), plan_.bench.check);
    bars_.count_wrong(m.measurement);
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
      bars_.count_busbw(figures.busbw_gbs);
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
    Json fields = merged(conditions_, record_of(trial, measured, figures, session_));
    add_path(fields);
    record_.write("collective", fields);
    csv_.add(fields);
    if (fields.contains("straggler_rank"))
      remarks_.push_back(fmt::format(
          "waited for rank {} on {}: {:.1f} us, the transfer took {:.1f} us",
          fields["straggler_rank"].get<int>(),
          session_.hosts()[fields["straggler_rank"].get<std::size_t>()],
          fields["wait_for_straggler_us"].get<double>(), fields["transfer_us_p50"].get<double>()));
    bars_.judge(fields, trial, figures.time_us);
  }

  /// Rows that seem slower are measured again, when what else the machine did meanwhile has passed.
  void judge_by_reference() {
    for (int again = 0; again < kMeasuredAgain; ++again) {
      const auto slower = bars_.slower_rows();
      if (slower.empty()) break;
      say(session_, fmt::format("# measuring again what is slower than the reference: {} rows",
                                slower.size()));
      for (ComparedRow* row : slower)
        row->measured_us.push_back(measure_half(row->trial).figures.samples);
    }
    bars_.judge_by_reference(options_.program);
  }

  /// Under the row that they are about.
  void print_remarks() {
    for (const Verdict& verdict : bars_.take_verdicts()) {
      record_.write("verdict", record_of(verdict));
      if (verdict.outcome != Outcome::pass) remarks_.push_back(line_of(verdict));
    }
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
  CsvFile csv_;
  Bars& bars_;
  Json conditions_;
  std::unique_ptr<CollectiveBench> bench_;
  std::optional<PathChoice> last_path_;
  std::vector<std::string> remarks_;
};

}  // namespace

ExitCode sweep(const PerfOptions& options, Plan plan, Backend& backend, const MpiSession& session,
               NcclPath& path, Record& record) {
  Communicator& communicator = choose_transport(options.transport, backend);
  check_transport(options, plan, communicator);
  limit_types(plan, options, communicator, backend, session);
  const std::string remark = limit_sizes(
      plan, CollectiveBench::largest_possible(communicator, backend, session, options.aggregate));
  Bars bars(options.bars, open_reference(options.bars, session));
  NcclTestsJson json(session.is_root() ? options.json : "", options, plan, backend, session);
  say(session, remark);
  say(session, preamble(options, plan, communicator, backend, session) + table_header(options));
  Sweep rows(options, plan, communicator, backend, session, path, record, bars);
  for (int done = 0; options.cycles == 0 || done < options.cycles; ++done) rows.cycle(json);
  say(session, footer(options, bars.totals()));
  json.finish(bars.totals());
  return bars.result();
}

}  // namespace shakedown::collectives
