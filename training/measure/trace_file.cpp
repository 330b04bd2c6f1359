#include "training/measure/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/output_file.hpp"
#include "common/record.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {
namespace {

// Threads of a process, in the order in which they are shown.
enum Thread { compute = 1, exchange = 2, host = 3 };

constexpr int kRanksARun = 100000;  // processes of different runs have different numbers

/// A process of the trace: one rank of one run.
class Process {
 public:
  Process(Json& events, int id, double zero_ms) : events_(events), id_(id), zero_ms_(zero_ms) {}

  void name(const std::string& text) const {
    meta("process_name", 0, {{"name", text}});
    meta("process_sort_index", 0, {{"sort_index", id_}});
    for (const auto& [thread, what] :
         {std::pair{compute, "compute stream"}, std::pair{exchange, "exchanges"},
          std::pair{host, "host enqueue"}}) {
      meta("thread_name", thread, {{"name", what}});
      meta("thread_sort_index", thread, {{"sort_index", static_cast<int>(thread)}});
    }
  }

  void slice(Thread thread, const std::string& name, const std::string& category, double begin_ms,
             double end_ms, const Json& more = Json::object()) const {
    Json event{{"ph", "X"},
               {"name", name},
               {"cat", category},
               {"pid", id_},
               {"tid", static_cast<int>(thread)},
               {"ts", microseconds(begin_ms)},
               {"dur", std::max(0.0, 1e3 * (end_ms - begin_ms))}};
    if (!more.empty()) event["args"] = more;
    events_.push_back(event);
  }

  void instant(const std::string& name, double at_ms) const {
    events_.push_back({{"ph", "i"},
                       {"name", name},
                       {"cat", "host"},
                       {"pid", id_},
                       {"tid", static_cast<int>(host)},
                       {"ts", microseconds(at_ms)},
                       {"s", "t"}});
  }

 private:
  double microseconds(double ms) const { return 1e3 * (ms - zero_ms_); }
  void meta(const char* what, int thread, const Json& arguments) const {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", id_}, {"tid", thread}, {"args", arguments}});
  }

  Json& events_;
  int id_;
  double zero_ms_;
};

std::string name_of_segment(const StepSegment& segment, const std::vector<std::string>& blocks) {
  if (segment.block < 0) return name_of(segment.phase);
  return fmt::format("{} {}", name_of(segment.phase),
                     blocks.at(static_cast<std::size_t>(segment.block)));
}

void add_steps(const Process& process, const RankTrace& rank,
               const std::vector<std::string>& blocks) {
  for (std::size_t s = 0; s < rank.steps.size(); ++s) {
    const TracedStep& step = rank.steps[s];
    process.slice(compute, fmt::format("step {}", s + 1), "step", step.begin_ms, step.end_ms);
    for (const StepSegment& segment : step.segments)
      process.slice(compute, name_of_segment(segment, blocks), name_of(segment.phase),
                    segment.begin_ms, segment.end_ms);
    for (std::size_t i = 0; i < step.exchanges.size(); ++i) {
      const Exchanged& e = step.exchanges[i];
      const std::string name = fmt::format("{} {}", e.what, i);
      process.slice(exchange, name, "exchange", e.begin_ms, e.end_ms,
                    {{"bytes", e.bytes},
                     {"ready_us_before", 1e3 * (e.begin_ms - e.ready_ms)},
                     {"enqueue_lead_us", 1e3 * (e.begin_ms - e.launch_ms)}});
      process.instant(name, e.launch_ms);
    }
  }
}

double first_ms(const Trace& trace) {
  double first = std::numeric_limits<double>::infinity();
  for (const RankTrace& rank : trace)
    if (!rank.steps.empty()) first = std::min(first, rank.steps.front().begin_ms);
  return first;
}

/// How long before its first step the host enqueued something. Perfetto drops what comes before 0.
double lead_ms(const std::vector<TracedRun>& runs) {
  double lead = 0;
  for (const TracedRun& run : runs)
    for (const RankTrace& rank : run.trace)
      for (const TracedStep& step : rank.steps)
        for (const Exchanged& e : step.exchanges)
          lead = std::max(lead, first_ms(run.trace) - e.launch_ms);
  return lead;
}

}  // namespace

void write_trace(const std::string& path, const std::vector<TracedRun>& runs,
                 const std::vector<std::string>& hosts) {
  Json events = Json::array();
  const double lead = lead_ms(runs);
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const Trace& trace = runs[run].trace;
    const auto blocks = block_names(find_architecture(runs[run].model));
    for (std::size_t r = 0; r < trace.size(); ++r) {
      const Process process(events, static_cast<int>(run) * kRanksARun + static_cast<int>(r) + 1,
                            first_ms(trace) - lead);
      process.name(fmt::format("{}: rank {}{} on {}", runs[run].label, r,
                               trace[r].computes ? "" : ", the server,", hosts.at(r)));
      add_steps(process, trace[r], blocks);
    }
  }
  write_file({"--trace", path}, [&](std::ostream& out) {
    out << json_text({{"displayTimeUnit", "ms"}, {"traceEvents", events}}) << '\n';
  });
}

}  // namespace shakedown::training
