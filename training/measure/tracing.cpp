#include "training/measure/tracing.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/record.hpp"
#include "training/measure/clock.hpp"

namespace shakedown::training {

// How a trace travels between ranks.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepSegment, phase, block, begin_ms, end_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Exchanged, what, bytes, ready_ms, launch_ms, begin_ms, end_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TracedStep, begin_ms, end_ms, segments, exchanges)
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
  Timeline& timeline = engine.step.timeline();
  engine.finish();
  session.barrier();
  timeline.start(engine.stream());
  RankTrace mine{engine.step.computes(), {}};
  for (int i = 0; i <= steps; ++i) {
    step();  // while it runs, the host is ahead of the next
    timeline.trace_step();
    step();
    engine.finish();
    mine.steps.push_back(timeline.read_step());
  }
  mine.steps.erase(mine.steps.begin());  // no graph yet, or late after the first one's capture

  const std::chrono::duration<double> began = timeline.began().time_since_epoch();
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

}  // namespace shakedown::training
