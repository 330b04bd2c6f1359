#include "collectives/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "collectives/nccl_tests_json.hpp"
#include "collectives/perf_table.hpp"
#include "collectives/waiting.hpp"
#include "common/program.hpp"

namespace shakedown {
namespace {

const char* launch_mode(const PerfOptions& options) {
  return options.graph > 0 ? "graph" : options.one_by_one != 0 ? "one_by_one" : "back_to_back";
}

std::string describe(const WrongElement& w, const MpiSession& session) {
  return fmt::format("rank {} on {}, iteration {}, element {}: expected {:#x}, found {:#x}", w.rank,
                     session.hosts()[static_cast<std::size_t>(w.rank)], w.iteration, w.index,
                     w.expected, w.found);
}

/// One cycle over the plan's rows, and what is kept of it.
class Sweep {
 public:
  Sweep(const PerfOptions& options, const Plan& plan, Backend& backend, const MpiSession& session,
        NcclPath& path, Record& record)
      : options_(options),
        plan_(plan),
        communicator_(choose_transport(options.transport, backend)),
        backend_(backend),
        session_(session),
        path_(path),
        record_(record),
        bars_(options.bars),
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
        conclude({operation->name, "INCONCLUSIVE", bars + ": no row moves data to be judged"});
      tell_remarks();
    }
  }

  long wrong_rows() const { return wrong_rows_; }
  double mean_busbw() const { return halves_ > 0 ? busbw_sum_ / halves_ : 0; }
  /// As nccl-tests judges NCCL_TESTS_MIN_BW: OK or FAILED; empty where it is not set.
  std::string judgement_of_mean() const {
    const char* least = options_.as_nccl_tests() ? std::getenv("NCCL_TESTS_MIN_BW") : nullptr;
    if (least == nullptr) return "";
    return mean_busbw() < 0.9 * std::atof(least) ? "FAILED" : "OK";
  }
  ExitCode result() {
    const std::string& reference = options_.bars.reference;
    if (!reference.empty() && with_reference_ == 0)
      conclude({options_.program, "INCONCLUSIVE",
                fmt::format("--reference {}: no row of it was measured here", reference), "job"});
    else if (!reference.empty() && without_reference_ > 0)
      say(session_, fmt::format("# {} rows have no reference to be judged by", without_reference_));
    tell_remarks();
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
      if (measured.wrong > 0) ++wrong_rows_;
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
    if (measured.first_wrong)
      remarks_.push_back("WRONG: " + describe(*measured.first_wrong, session_));
    if (fields.contains("straggler_rank"))
      remarks_.push_back(fmt::format(
          "waited for rank {} on {}: {:.1f} us, the transfer took {:.1f} us",
          fields["straggler_rank"].get<int>(),
          session_.hosts()[fields["straggler_rank"].get<std::size_t>()],
          fields["wait_for_straggler_us"].get<double>(), fields["transfer_us_p50"].get<double>()));
    if (trial.counts.call == 0) return;  // nothing moved: nothing to judge
    ++(bars_.reference_of(fields) != nullptr ? with_reference_ : without_reference_);
    if (const auto verdict = bars_.judge(fields, figures.time_us, trial.asked_bytes == smallest_,
                                         trial.asked_bytes == plan_.sizes.back()))
      conclude(*verdict);
  }

  void conclude(const Verdict& verdict) {
    record_.write("verdict", shakedown::record_of(verdict));
    if (verdict.verdict == "PASS") return;
    (verdict.verdict == "FAIL" ? failed_ : inconclusive_) = true;
    remarks_.push_back(fmt::format("{} {}: {}", verdict.verdict, verdict.name, verdict.cause));
  }

  /// What NCCL says of it, told again when it changes.
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
    Json fields{{"backend", name_of(backend_.kind)},
                {"transport", communicator_.transport()},
                {"launch_mode", launch_mode(options_)},
                {"world_size", communicator_.size()},
                {"operation", trial.operation->name},
                {"dtype", name_of(trial.type)},
                {"reduction", trial.operation->reduces ? name_of(trial.reduction) : "none"},
                {"root", trial.root},
                {"bytes", trial.bytes()},
                {"count", trial.counts.call},
                {"in_place", trial.in_place},
                {"registration", options_.registration},
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
                {"samples_us", figures.samples}};
    if (is_mpi(communicator_)) fields["mpi_algorithm"] = name_of(backend_.mpi_algorithm);
    if (measured.first_wrong) fields["first_wrong"] = describe(*measured.first_wrong, session_);
    if (!measured.iteration_us.empty()) {
      const Waiting waiting = analyse_waiting(measured.iteration_us);
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
  Backend& backend_;
  const MpiSession& session_;
  NcclPath& path_;
  Record& record_;
  Bars bars_;
  CollectiveBench bench_;
  std::optional<PathChoice> last_path_;
  std::vector<std::string> remarks_;  // on the row, printed under it
  long wrong_rows_ = 0;
  double busbw_sum_ = 0;
  int halves_ = 0;
  std::size_t smallest_ = 0;  // asked size of the operation's first row that moves anything
  int with_reference_ = 0;    // rows that moved something
  int without_reference_ = 0;
  bool failed_ = false;
  bool inconclusive_ = false;
};

/// What MPI cannot do is refused before anything is measured.
void check_transport(const PerfOptions& options, const Plan& plan,
                     const Communicator& communicator) {
  if (!is_mpi(communicator)) {
    if (options.backend.mpi_algorithm == "own")
      throw UsageError("--mpi-algorithm own: the transport is nccl, not mpi");
    return;
  }
  if (options.graph > 0)
    throw UsageError("--cuda-graph: what MPI does cannot be captured in CUDA graphs");
  if (options.registration != 0)
    throw UsageError("--register: buffers are registered with NCCL, the transport is mpi");
  if (options.path) throw UsageError("--path: NCCL is asked for it, the transport is mpi");
  std::size_t width = 8;
  for (DataType type : plan.types) width = std::min(width, size_of(type));
  if (plan.sizes.back() / width > INT_MAX)
    throw UsageError(
        fmt::format("--max-bytes {}: MPI counts up to {} elements", options.max_bytes, INT_MAX));
}

/// Types that a rank lacks are left out where all were asked for. Collective.
void limit_types(Plan& plan, const PerfOptions& options, const Communicator& communicator,
                 const Backend& backend, const MpiSession& session) {
  const bool all = std::count(options.types.begin(), options.types.end(), "all") > 0;
  std::vector<DataType> types;
  for (DataType type : plan.types) {
    const auto supporting = session.all_gather(communicator.supports(type) ? 1.0 : 0.0);
    if (*std::min_element(supporting.begin(), supporting.end()) > 0) {  // GPUs may differ
      types.push_back(type);
      continue;
    }
    if (all) continue;
    throw UsageError(fmt::format(
        "--dtype {}: not {}", name_of(type),
        backend.kind == BackendKind::cpu
            ? "on the cpu backend"
            : fmt::format("on all of these GPUs, or not by {}", communicator.transport())));
  }
  plan.types = types;
}

/// As nccl-tests: what cannot be had is not measured, and said.
std::string limit_sizes(Plan& plan, std::size_t most) {
  if (plan.sizes.back() <= most) return "";
  if (plan.sizes.front() > most) plan.sizes = {most};
  while (plan.sizes.back() > most) plan.sizes.pop_back();
  plan.max_bytes = plan.sizes.back();
  return fmt::format("#\n# Reducing maxBytes to {} due to memory limitation", plan.max_bytes);
}

}  // namespace

Communicator& choose_transport(const std::string& transport, Backend& backend) {
  if (transport == "mpi") return *backend.host;
  if (transport == "nccl" && std::string(backend.world->transport()) != "nccl")
    throw UsageError("--transport nccl: NCCL runs on GPUs, the backend is cpu");
  return *backend.world;
}

ExitCode sweep(const PerfOptions& options, Plan plan, Backend& backend, const MpiSession& session,
               NcclPath& path, Record& record) {
  const Communicator& communicator = choose_transport(options.transport, backend);
  check_transport(options, plan, communicator);
  limit_types(plan, options, communicator, backend, session);
  const std::string remark = limit_sizes(
      plan, CollectiveBench::largest_possible(communicator, backend, session, options.aggregate));
  NcclTestsJson json(session.is_root() ? options.json : "", options, plan, backend, session);
  say(session, remark);
  say(session, preamble(options, plan, communicator, backend, session) + table_header(options));
  Sweep rows(options, plan, backend, session, path, record);
  for (int done = 0; options.cycles == 0 || done < options.cycles; ++done) rows.cycle(json);
  say(session, footer(options, rows.wrong_rows(), rows.mean_busbw(), rows.judgement_of_mean()));
  json.finish(rows.wrong_rows(), rows.mean_busbw(), rows.judgement_of_mean());
  return rows.result();
}

}  // namespace shakedown
