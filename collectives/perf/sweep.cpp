#include "collectives/perf/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "collectives/perf/nccl_tests_json.hpp"
#include "collectives/perf/perf_table.hpp"
#include "collectives/perf/plan_limits.hpp"
#include "collectives/perf/reference.hpp"
#include "collectives/perf/waiting.hpp"
#include "collectives/round_robin.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

const char* launch_mode(const PerfOptions& options) {
  return options.graph > 0 ? "graph" : options.one_by_one != 0 ? "one_by_one" : "back_to_back";
}

std::string describe(const WrongElement& w, const MpiSession& session) {
  return fmt::format("rank {} on {}, iteration {}, element {}: expected {:#x}, found {:#x}", w.rank,
                     session.hosts()[static_cast<std::size_t>(w.rank)], w.iteration, w.index,
                     w.expected, w.found);
}

/// What --reference names, which rank 0 alone reads: nothing where it is empty. Collective.
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

/// Of what every record repeats: where it was measured and how, so that records can be compared.
/// Collective.
Json conditions_of(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                   const Backend& backend, const MpiSession& session) {
  const NodeMap nodes = map_nodes(session.hosts());
  std::vector<int> ranks_per_node(nodes.names.size());
  for (int node : nodes.node_of) ++ranks_per_node[static_cast<std::size_t>(node)];
  const auto models = session.all_gather(backend.device->identity().model);
  const std::set<std::string> devices(models.begin(), models.end());
  Json conditions{{"backend", name_of(backend.kind)},
                  {"device", fmt::format("{}", fmt::join(devices, ", "))},
                  {"transport", communicator.transport()},
                  {"launch_mode", launch_mode(options)},
                  {"world_size", communicator.size()},
                  {"nodes", nodes.names.size()},
                  {"ranks_per_node", ranks_per_node},
                  {"registration", options.registration},
                  {"aggregate", plan.bench.aggregate},
                  {"blocking", options.blocking},
                  {"average", options.average},
                  {"ctas", options.backend.ctas},
                  {"iterations_per_sample", plan.bench.iterations}};
  if (is_mpi(communicator)) conditions["mpi_algorithm"] = name_of(backend.mpi_algorithm);
  return conditions;
}

/// One cycle over the plan's rows, and what is kept of it.
class Sweep {
 public:
  Sweep(const PerfOptions& options, const Plan& plan, Backend& backend, const MpiSession& session,
        NcclPath& path, Record& record, std::optional<Reference> reference)
      : options_(options),
        plan_(plan),
        communicator_(choose_transport(options.transport, backend)),
        session_(session),
        path_(path),
        record_(record),
        bars_(options.bars),
        reference_(std::move(reference)),
        conditions_(conditions_of(options, plan, communicator_, backend, session)),
        bench_(communicator_, backend, session, plan.bench, plan.sizes.back()) {}

  void cycle(NcclTestsJson& json) {
    for (const Operation* operation : plan_.operations) {
      if (!options_.as_nccl_tests()) say(session_, fmt::format("# {}", operation->name));
      const auto rows = rows_of(*operation, plan_, options_, communicator_.size());
      const auto moves = std::find_if(rows.begin(), rows.end(),
                                      [](const Trial& row) { return row.counts.call > 0; });
      smallest_ = moves == rows.end() ? 0 : moves->asked_bytes;
      bench_.warm_up(rows);
      for (const Trial& row : rows) measure(row, json);
      if (const std::string bars = bars_.bars_on_sizes(); moves == rows.end() && !bars.empty())
        conclude({"operation", operation->name, ExitCode::inconclusive,
                  bars + ": no row moves data to be judged"});
      tell_remarks();
    }
    if (reference_) judge_by_reference();
    tell_remarks();
  }

  long wrong_rows() const { return wrong_rows_; }
  double mean_busbw() const { return halves_ > 0 ? busbw_sum_ / halves_ : 0; }
  /// As nccl-tests judges NCCL_TESTS_MIN_BW: OK or FAILED; empty where it is not set.
  std::string judgement_of_mean() const {
    const char* least = options_.as_nccl_tests() ? std::getenv("NCCL_TESTS_MIN_BW") : nullptr;
    if (least == nullptr) return "";
    return mean_busbw() < 0.9 * std::atof(least) ? "FAILED" : "OK";
  }
  ExitCode result() const {
    if (failed_ || wrong_rows_ > 0 || judgement_of_mean() == "FAILED") return ExitCode::fail;
    return inconclusive_ ? ExitCode::inconclusive : ExitCode::pass;
  }

 private:
  void measure(const Trial& row, NcclTestsJson& json) {
    std::string line = row_start(row);
    json.start_row(row);
    for (bool in_place : {false, true}) {
      Trial trial = row;
      trial.in_place = in_place && row.operation->in_place;
      // Operations without an in-place form are measured once; nccl-tests' parsers want both
      // halves.
      if (in_place && !trial.in_place && !options_.as_nccl_tests()) continue;
      const Measurement measured = bench_.measure(trial);
      Figures figures = figures_of(trial, measured, communicator_.size(), plan_.bench.check);
      add_wrong(measured);
      busbw_sum_ += figures.busbw_gbs;
      ++halves_;
      if (!in_place || trial.in_place) keep(trial, measured, figures);
      if (in_place && !trial.in_place && measured.wrong == 0) figures.wrong.reset();
      line += row_half(figures, options_);
      json.add_half(in_place, figures, measured);
    }
    if (options_.timestamps != 0) line += fmt::format("{:>21}", local_now());
    say(session_, line);
    json.end_row(options_.iterations);
    tell_remarks();
  }

  void tell_remarks() {
    for (const std::string& remark : remarks_) say(session_, "# " + remark);
    remarks_.clear();
  }

  /// Records and judges.
  void keep(const Trial& trial, const Measurement& measured, const Figures& figures) {
    Json fields = record_of(trial, measured, figures);
    add_path(fields);
    record_.write("collective", fields);
    if (fields.contains("straggler_rank"))
      remarks_.push_back(fmt::format(
          "waited for rank {} on {}: {:.1f} us, the transfer took {:.1f} us",
          fields["straggler_rank"].get<int>(),
          session_.hosts()[fields["straggler_rank"].get<std::size_t>()],
          fields["wait_for_straggler_us"].get<double>(), fields["transfer_us_p50"].get<double>()));
    if (trial.counts.call == 0) return;  // nothing moved: nothing to judge
    if (reference_) reference_->add(fields, trial);
    if (const auto finding = bars_.judge(fields, figures.time_us, trial.asked_bytes == smallest_,
                                         trial.asked_bytes == plan_.sizes.back()))
      conclude(*finding);
  }

  /// Rows that seem slower are measured again: what else the machine did meanwhile has passed.
  void judge_by_reference() {
    for (int again = 0; again < kMeasuredAgain; ++again) {
      const auto slower = reference_->slower_rows();
      if (slower.empty()) break;
      say(session_, fmt::format("# measuring again what is slower than the reference: {} rows",
                                slower.size()));
      for (ComparedRow* row : slower) {
        const Measurement measured = bench_.measure(row->trial);
        add_wrong(measured);
        row->measured_us.push_back(
            figures_of(row->trial, measured, communicator_.size(), plan_.bench.check).samples);
      }
    }
    for (const Finding& finding : reference_->judge_rows(options_.program)) conclude(finding);
  }

  void add_wrong(const Measurement& measured) {
    if (measured.wrong > 0) ++wrong_rows_;
    if (measured.first_wrong)
      remarks_.push_back("WRONG: " + describe(*measured.first_wrong, session_));
  }

  void conclude(const Finding& finding) {
    record_.write("verdict", collectives::record_of(finding));
    if (finding.code == ExitCode::pass) return;
    (finding.code == ExitCode::fail ? failed_ : inconclusive_) = true;
    remarks_.push_back(
        fmt::format("{} {}: {}", verdict_of(finding.code), finding.name, finding.cause));
  }

  /// What NCCL says of it, printed again when it changes.
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

  Json record_of(const Trial& trial, const Measurement& measured, const Figures& figures) const {
    const Summary& s = figures.spread;
    const Interval interval = bootstrap_median(figures.samples);
    // algbw and busbw are the table's, of nccl-tests' time; one by one, samples are iterations
    Json fields = merged(
        conditions_, {{"operation", trial.operation->name},
                      {"dtype", name_of(trial.type)},
                      {"reduction", trial.operation->reduces ? name_of(trial.reduction) : "none"},
                      {"root", trial.root},
                      {"bytes", trial.bytes()},
                      {"count", trial.counts.call},
                      {"in_place", trial.in_place},
                      {"time_us_p50", s.median},
                      {"time_us_low", interval.low},
                      {"time_us_high", interval.high},
                      {"time_us_p95", s.p95},
                      {"time_us_p99", s.p99},
                      {"time_us_max", s.max},
                      {"time_us_cv", s.cv},
                      {"event_us_p50", median_of(measured.event_us)},
                      {"enqueue_us_p50", figures.cputime_us},
                      {"algbw_gbs", figures.algbw_gbs},
                      {"busbw_gbs", figures.busbw_gbs},
                      {"iterations", measured.iterations},
                      {"iterations_checked", measured.iterations_checked},
                      {"wrong_elements", plan_.bench.check ? Json(measured.wrong) : Json(nullptr)},
                      {"samples_us", figures.samples}});
    if (measured.first_wrong) fields["first_wrong"] = describe(*measured.first_wrong, session_);
    if (!measured.iteration_us.empty() && trial.operation->ends_together) {
      const WaitingTimes waiting = analyse_waiting(measured.iteration_us);
      fields["transfer_us_p50"] = waiting.transfer_us;
      fields["wait_us"] = waiting.wait_us;
      fields["wait_for_straggler_us"] = waiting.wait_for_straggler_us;
      if (waiting.straggler >= 0) fields["straggler_rank"] = waiting.straggler;
    }
    return fields;
  }

  const PerfOptions& options_;
  const Plan& plan_;
  Communicator& communicator_;
  const MpiSession& session_;
  NcclPath& path_;
  Record& record_;
  Bars bars_;
  std::optional<Reference> reference_;
  Json conditions_;
  CollectiveBench bench_;
  std::optional<PathChoice> last_path_;
  std::vector<std::string> remarks_;  // on the row, printed under it
  long wrong_rows_ = 0;
  double busbw_sum_ = 0;
  int halves_ = 0;
  std::size_t smallest_ = 0;  // asked size of the operation's first row that moves anything
  bool failed_ = false;
  bool inconclusive_ = false;
};

}  // namespace

ExitCode sweep(const PerfOptions& options, Plan plan, Backend& backend, const MpiSession& session,
               NcclPath& path, Record& record) {
  const Communicator& communicator = choose_transport(options.transport, backend);
  check_transport(options, plan, communicator);
  limit_types(plan, options, communicator, backend, session);
  const std::string remark = limit_sizes(
      plan, CollectiveBench::largest_possible(communicator, backend, session, options.aggregate));
  auto reference = open_reference(options.bars, session);
  NcclTestsJson json(session.is_root() ? options.json : "", options, plan, backend, session);
  say(session, remark);
  say(session, preamble(options, plan, communicator, backend, session) + table_header(options));
  Sweep rows(options, plan, backend, session, path, record, std::move(reference));
  for (int done = 0; options.cycles == 0 || done < options.cycles; ++done) rows.cycle(json);
  say(session, footer(options, rows.wrong_rows(), rows.mean_busbw(), rows.judgement_of_mean()));
  json.finish(rows.wrong_rows(), rows.mean_busbw(), rows.judgement_of_mean());
  return rows.result();
}

}  // namespace shakedown::collectives
