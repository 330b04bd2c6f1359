#include "training/measure/breakdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "common/ensure.hpp"
#include "common/mpi_session.hpp"
#include "common/output_file.hpp"
#include "common/record.hpp"
#include "common/statistics.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

// How a trace travels between ranks.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepSegment, phase, block, begin_ms, end_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Exchanged, what, bytes, ready_ms, launch_ms, begin_ms, end_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TracedStep, begin_ms, end_ms, segments, exchanges)

}  // namespace shakedown

namespace shakedown::training {
namespace {

bool computing(const StepSegment& segment) {
  return segment.phase == Phase::forward || segment.phase == Phase::backward;
}

double overlap_ms(const StepSegment& segment, const Exchanged& exchange) {
  return std::max(0.0, std::min(segment.end_ms, exchange.end_ms) -
                           std::max(segment.begin_ms, exchange.begin_ms));
}

/// Exchanges of one stream follow one another, so what overlaps with each adds up.
double overlap_ms(const StepSegment& segment, const TracedStep& step) {
  double ms = 0;
  for (const Exchanged& exchange : step.exchanges) ms += overlap_ms(segment, exchange);
  return std::min(ms, segment.ms());
}

double spent(const TracedStep& step, Phase phase) {
  double ms = 0;
  for (const StepSegment& segment : step.segments)
    if (segment.phase == phase) ms += segment.ms();
  return ms;
}

using Measure = std::function<double(const TracedStep&)>;

double median_over_steps(const RankTrace& rank, const Measure& measure) {
  std::vector<double> values;
  for (const TracedStep& step : rank.steps) values.push_back(measure(step));
  return median_of(values);
}

/// Medians over the steps, averaged over the ranks that compute.
double typical(const Trace& trace, const Measure& measure) {
  double sum = 0;
  int ranks = 0;
  for (const RankTrace& rank : trace) {
    if (!rank.computes) continue;
    sum += median_over_steps(rank, measure);
    ++ranks;
  }
  ENSURE(ranks > 0, "some rank computes");
  return sum / ranks;
}

/// Median time of each block in each direction.
using BlockTimes = std::map<std::pair<Phase, int>, double>;
BlockTimes block_times(const RankTrace& rank) {
  std::map<std::pair<Phase, int>, std::vector<double>> samples;
  for (const TracedStep& step : rank.steps)
    for (const StepSegment& segment : step.segments)
      if (computing(segment)) samples[{segment.phase, segment.block}].push_back(segment.ms());
  BlockTimes times;
  for (const auto& [block, ms] : samples) times[block] = median_of(ms);
  return times;
}

struct Overlapped {
  double alone_ms = 0;  // what the blocks take in the baseline
  double more_ms = 0;   // what they took longer
};
constexpr double kOverlapped = 0.05;  // of a block's time, that it counts as overlapped

Overlapped overlapped_blocks(const TracedStep& step, const BlockTimes& baseline) {
  Overlapped sum;
  for (const StepSegment& segment : step.segments) {
    if (!computing(segment) || overlap_ms(segment, step) < kOverlapped * segment.ms()) continue;
    const double alone = baseline.at({segment.phase, segment.block});
    sum.alone_ms += alone;
    sum.more_ms += segment.ms() - alone;
  }
  return sum;
}

void add_interference(Breakdown& b, const Trace& trace, const Trace& baseline) {
  Overlapped all;
  int ranks = 0;
  for (std::size_t r = 0; r < trace.size(); ++r) {
    if (!trace[r].computes) continue;
    const BlockTimes alone = block_times(baseline.at(r));
    all.alone_ms += median_over_steps(
        trace[r], [&](const TracedStep& s) { return overlapped_blocks(s, alone).alone_ms; });
    all.more_ms += median_over_steps(
        trace[r], [&](const TracedStep& s) { return overlapped_blocks(s, alone).more_ms; });
    ++ranks;
  }
  b.interference_ms = all.more_ms / ranks;
  b.slowdown = all.alone_ms > 0 ? all.more_ms / all.alone_ms : 0;
}

double compute_ms(const TracedStep& step) {
  return spent(step, Phase::forward) + spent(step, Phase::backward);
}

double hidden_ms(const Exchanged& exchange, const TracedStep& step) {
  double ms = 0;
  for (const StepSegment& segment : step.segments)
    if (computing(segment)) ms += overlap_ms(segment, exchange);
  return ms;
}

double exposed_ms(const Exchanged& exchange, const TracedStep& step) {
  double ms = 0;
  for (const StepSegment& segment : step.segments)
    if (segment.phase == Phase::exchange) ms += overlap_ms(segment, exchange);
  return ms;
}

double all_exchanges(const TracedStep& step,
                     const std::function<double(const Exchanged&)>& measure) {
  double sum = 0;
  for (const Exchanged& exchange : step.exchanges) sum += measure(exchange);
  return sum;
}

/// The ranks that compute.
std::vector<const RankTrace*> computing_ranks(const Trace& trace) {
  std::vector<const RankTrace*> ranks;
  for (const RankTrace& rank : trace)
    if (rank.computes) ranks.push_back(&rank);
  return ranks;
}

ExchangeWait waiting_in(const Trace& trace, std::size_t index) {
  const auto ranks = computing_ranks(trace);
  std::map<int, int> last;  // rank -> in how many steps
  std::vector<double> waits;
  const std::size_t steps = ranks.front()->steps.size();
  for (std::size_t s = 0; s < steps; ++s) {
    std::vector<double> ms;
    for (const RankTrace* rank : ranks) ms.push_back(rank->steps[s].exchanges[index].ms());
    const auto shortest = std::min_element(ms.begin(), ms.end());
    const double sum = std::accumulate(ms.begin(), ms.end(), 0.0);
    waits.push_back(sum / static_cast<double>(ms.size()) - *shortest);
    const auto which = static_cast<std::size_t>(shortest - ms.begin());
    ++last[static_cast<int>(ranks[which] - trace.data())];
  }
  const auto most = std::max_element(
      last.begin(), last.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return {median_of(waits), most->first,
          static_cast<double>(most->second) / static_cast<double>(steps)};
}

/// A server's share of the baseline has nothing to be compared with.
Trace of_the_same_ranks(Trace baseline, const Trace& trace) {
  for (std::size_t r = 0; r < baseline.size(); ++r) baseline[r].computes = trace.at(r).computes;
  return baseline;
}

/// Operations in which nobody is done before everybody has come.
bool symmetric(const std::string& what) {
  return what == "all_reduce" || what == "reduce_scatter" || what == "all_gather";
}

}  // namespace

double step_ms(const Trace& trace) {
  return typical(trace, [](const TracedStep& step) { return step.ms(); });
}

Breakdown break_down(const Trace& trace, const Trace* baseline) {
  Breakdown b;
  b.traced_steps = trace.front().steps.size();
  b.step_ms = step_ms(trace);
  b.compute_ms = baseline != nullptr ? typical(of_the_same_ranks(*baseline, trace), compute_ms)
                                     : typical(trace, compute_ms);
  b.exposed_comm_ms = typical(trace, [](const auto& s) { return spent(s, Phase::exchange); });
  b.input_stall_ms = typical(trace, [](const auto& s) { return spent(s, Phase::input); });
  b.optimizer_ms = typical(trace, [](const auto& s) { return spent(s, Phase::update); });
  b.hidden_comm_ms = typical(trace, [](const auto& s) {
    return all_exchanges(s, [&](const Exchanged& e) { return hidden_ms(e, s); });
  });
  b.comm_ms = typical(trace, [](const auto& s) {
    return all_exchanges(s, [](const Exchanged& e) { return e.ms(); });
  });
  if (baseline != nullptr) add_interference(b, trace, *baseline);
  return b;
}

std::optional<double> exchange_ms(const Trace& trace, const std::string& what) {
  bool found = false;
  const double ms = typical(trace, [&](const TracedStep& step) {
    return all_exchanges(step, [&](const Exchanged& e) {
      found = found || e.what == what;
      return e.what == what ? e.ms() : 0;
    });
  });
  return found ? std::optional(ms) : std::nullopt;
}

std::vector<ExchangeTimes> exchange_times(const Trace& trace) {
  const auto ranks = computing_ranks(trace);
  const auto& first = ranks.front()->steps.front().exchanges;
  const auto alike = [&](const TracedStep& step) { return step.exchanges.size() == first.size(); };
  for (const RankTrace* rank : ranks)
    if (!std::all_of(rank->steps.begin(), rank->steps.end(), alike)) return {};

  std::vector<ExchangeTimes> all;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto of = [&](auto&& measure) {
      return typical(trace, [&](const TracedStep& s) { return measure(s.exchanges[i], s); });
    };
    ExchangeTimes& times = all.emplace_back();
    times.index = i;
    times.what = first[i].what;
    times.bytes = first[i].bytes;
    times.ready_ms = of([](const auto& e, const auto& s) { return e.ready_ms - s.begin_ms; });
    times.launch_ms = of([](const auto& e, const auto& s) { return e.launch_ms - s.begin_ms; });
    times.start_ms = of([](const auto& e, const auto& s) { return e.begin_ms - s.begin_ms; });
    times.end_ms = of([](const auto& e, const auto& s) { return e.end_ms - s.begin_ms; });
    times.hidden_ms = of(hidden_ms);
    times.exposed_ms = of(exposed_ms);
    if (symmetric(times.what)) times.waiting = waiting_in(trace, i);
  }
  return all;
}

BackwardTimes backward_times(const Trace& trace) {
  const auto began = [](const TracedStep& step) {
    const auto first = std::find_if(step.segments.begin(), step.segments.end(),
                                    [](const auto& s) { return s.phase == Phase::backward; });
    ENSURE(first != step.segments.end(), "a step has a backward pass");
    return first->begin_ms;
  };
  int blocks = 0;
  for (const StepSegment& segment : computing_ranks(trace).front()->steps.front().segments)
    blocks = std::max(blocks, segment.block + 1);
  BackwardTimes times;
  for (int block = 0; block < blocks; ++block)
    times.ready_ms.push_back(typical(trace, [&](const TracedStep& step) {
      for (const StepSegment& segment : step.segments)
        if (segment.phase == Phase::backward && segment.block == block)
          return segment.end_ms - began(step);
      return 0.0;
    }));
  times.backward_ms = times.ready_ms.front();
  return times;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTrace, computes, steps)

namespace {

void shift(std::vector<TracedStep>& steps, double ms) {
  for (TracedStep& step : steps) {
    step.begin_ms += ms;
    step.end_ms += ms;
    for (StepSegment& segment : step.segments) {
      segment.begin_ms += ms;
      segment.end_ms += ms;
    }
    for (Exchanged& exchange : step.exchanges)
      for (double* time :
           {&exchange.ready_ms, &exchange.launch_ms, &exchange.begin_ms, &exchange.end_ms})
        *time += ms;
  }
}

Trace trace(Engine& engine, int steps, const MpiSession& session,
            const std::function<void()>& step) {
  const double ahead_s = seconds_ahead_of_root(session);
  Recorder& recorder = engine.step.recorder();
  engine.finish();
  session.barrier();
  recorder.start_trace();
  RankTrace mine{engine.step.computes(), {}};
  for (int i = 0; i <= steps; ++i) {
    step();  // while it runs, the host is ahead of the next
    recorder.trace_step();
    step();
    engine.finish();
    mine.steps.push_back(recorder.read_step());
  }
  mine.steps.erase(mine.steps.begin());  // no graph yet, or late after the first one's capture

  const std::chrono::duration<double> began = recorder.began().time_since_epoch();
  const auto origins_s = session.all_gather(began.count() - ahead_s);
  const double first_s = *std::min_element(origins_s.begin(), origins_s.end());
  shift(mine.steps, 1e3 * (origins_s[static_cast<std::size_t>(session.rank())] - first_s));
  Trace all;
  for (const std::string& text : session.all_gather(json_text(nlohmann::json(mine))))
    all.push_back(nlohmann::json::parse(text).get<RankTrace>());
  return all;
}

}  // namespace

int steps_to_trace(int iterations) { return std::clamp(iterations / 5, 2, 10); }

Trace trace_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                  const MpiSession& session) {
  EndlessBatches endless(batches);
  return trace(engine, steps, session, [&] {
    engine.step.run([&](int) { endless.load_next(engine.model.network()); }, learning_rate);
  });
}

Trace trace_exchange(Engine& engine, int steps, const MpiSession& session) {
  return trace(engine, steps, session, [&] { engine.step.exchange_alone(); });
}

namespace {

constexpr int kRounds = 20;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double seconds_ahead_of_root(const MpiSession& session) {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const double sent = now_s();
    const double root_sent = session.all_gather(sent)[0];
    const double received = now_s();
    const double root_received = session.all_gather(received)[0];
    low = std::max(low, sent - root_received);
    high = std::min(high, received - root_sent);
  }
  return session.is_root() ? 0 : (low + high) / 2;
}

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
