#include "training/measure/profile.hpp"

namespace shakedown::training {
namespace {

constexpr std::size_t kMostBuckets = 64;

}  // namespace

Profile profile_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                      const MpiSession& session) {
  Profile profile;
  profile.steps = trace_steps(engine, batches, steps, learning_rate, session);
  profile.alone = trace_exchange(engine, steps, session);
  const StrategyOptions own = engine.settings().strategy;
  if (!engine.step.strategy_entry().overlaps() || own.no_overlap) return profile;
  StrategyOptions serial = own;
  serial.no_overlap = true;
  engine.step.use_strategy(serial);
  engine.model.restart();
  profile.serial = trace_steps(engine, batches, steps, learning_rate, session);
  engine.step.use_strategy(own);
  engine.model.restart();
  return profile;
}

ExchangeSums exchange_sums(const Trace& steps) {
  return {break_down(steps, nullptr).comm_ms, exchange_ms(steps, "push"),
          exchange_ms(steps, "pull")};
}

Breakdown break_down(const Profile& profile, const Trace* none) {
  Breakdown b = break_down(profile.steps, none);
  if (none != nullptr) b.none_step_ms = step_ms(*none);
  b.comm_alone_ms = step_ms(profile.alone);
  if (profile.serial) b.serial_step_ms = step_ms(*profile.serial);
  return b;
}

std::vector<ExchangeTimes> bucket_times(const Trace& steps) {
  std::vector<ExchangeTimes> exchanges = exchange_times(steps);
  if (exchanges.size() > kMostBuckets) exchanges.clear();
  return exchanges;
}

}  // namespace shakedown::training
