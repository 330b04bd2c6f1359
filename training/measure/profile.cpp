#include "training/measure/profile.hpp"

#include <fmt/format.h>

#include "common/progress.hpp"

namespace shakedown::training {
namespace {

constexpr std::size_t kMostBuckets = 64;
constexpr double kWaited = 0.05;  // of an exchange's time: less is not worth a name

std::string straggler_of(const Json& b) {
  const auto number = [&](const char* key) { return b.at(key).get<double>(); };
  if (!b.contains("wait_ms")) return "";
  if (number("wait_ms") < kWaited * (number("end_ms") - number("start_ms"))) return "-";
  return fmt::format("rank {} ({:.0f} %)", b.at("straggler_rank").get<int>(),
                     100 * number("straggler_share"));
}

}  // namespace

Profile profile_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                      const MpiSession& session) {
  Profile profile;
  profile.steps = trace_steps(engine, batches, steps, learning_rate, session);
  profile.alone = trace_exchange(engine, steps, session);
  const StrategyOptions own = engine.settings().strategy;
  if (!engine.step.strategy_entry().overlaps || own.no_overlap) return profile;
  StrategyOptions serial = own;
  serial.no_overlap = true;
  engine.step.use_strategy(serial);
  engine.model.restart();
  profile.serial = trace_steps(engine, batches, steps, learning_rate, session);
  engine.step.use_strategy(own);
  engine.model.restart();
  return profile;
}

Json exchange_fields(const Trace& steps) {
  Json fields = Json::object();
  if (const double ms = break_down(steps, nullptr).comm_ms; ms > 0) fields["comm_ms"] = ms;
  if (const auto ms = exchange_ms(steps, "push")) fields["push_ms"] = *ms;
  if (const auto ms = exchange_ms(steps, "pull")) fields["pull_ms"] = *ms;
  return fields;
}

Json breakdown_fields(const Trace& steps, const Trace* none) {
  const Breakdown b = break_down(steps, none);
  Json fields{{"traced_steps", steps.front().steps.size()},
              {"step_ms", b.step_ms},
              {"compute_ms", b.compute_ms},
              {"exposed_comm_ms", b.exposed_comm_ms}};
  if (b.interference_ms) {
    fields["interference_ms"] = *b.interference_ms;
    fields["interference_slowdown"] = b.slowdown;
  }
  fields.update({{"input_stall_ms", b.input_stall_ms},
                 {"optimizer_ms", b.optimizer_ms},
                 {"residual_ms", b.residual_ms()},
                 {"residual", b.residual_ms() / b.step_ms},
                 {"hidden_comm_ms", b.hidden_comm_ms},
                 {"comm_ms", b.comm_ms}});
  return fields;
}

Json breakdown_fields(const Profile& profile, const Trace* none) {
  Json fields = breakdown_fields(profile.steps, none);
  if (none != nullptr) fields["none_step_ms"] = step_ms(*none);
  fields["comm_alone_ms"] = step_ms(profile.alone);
  if (profile.serial) fields["serial_step_ms"] = step_ms(*profile.serial);
  return fields;
}

std::vector<Json> bucket_fields(const Trace& steps) {
  const std::vector<ExchangeTimes> exchanges = exchange_times(steps);
  if (exchanges.size() > kMostBuckets) return {};
  std::vector<Json> all;
  for (const ExchangeTimes& e : exchanges) {
    Json& fields = all.emplace_back(Json{{"index", all.size()},
                                         {"exchange", e.what},
                                         {"bytes", e.bytes},
                                         {"ready_ms", e.ready_ms},
                                         {"launch_ms", e.launch_ms},
                                         {"start_ms", e.start_ms},
                                         {"end_ms", e.end_ms},
                                         {"hidden_ms", e.hidden_ms},
                                         {"exposed_ms", e.exposed_ms}});
    if (e.waiting)
      fields.update({{"wait_ms", e.waiting->ms},
                     {"straggler_rank", e.waiting->straggler},
                     {"straggler_share", e.waiting->share}});
  }
  return all;
}

std::string summary_of_breakdown(const Json& breakdown) {
  const auto ms = [&](const char* key) { return breakdown.at(key).get<double>(); };
  return fmt::format(
      "a step    {:.2f} ms traced: {:.2f} forward and backward, {:.2f} exposed communication, "
      "{:.2f} input, {:.2f} optimizer; {:.2f} of communication hidden\n",
      ms("step_ms"), ms("compute_ms"), ms("exposed_comm_ms"), ms("input_stall_ms"),
      ms("optimizer_ms"), ms("hidden_comm_ms"));
}

std::string table_of_buckets(const std::vector<Json>& buckets) {
  if (buckets.empty()) return "";
  std::string text = fmt::format(
      "  {:>2} {:<14} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}  {}\n", "", "ms", "bytes",
      "ready", "launched", "start", "end", "hidden", "exposed", "waits", "last to come");
  for (const Json& b : buckets) {
    const auto ms = [&](const char* key) { return b.at(key).get<double>(); };
    const std::string waits = b.contains("wait_ms") ? fmt::format("{:.3f}", ms("wait_ms")) : "-";
    text += fmt::format(
        "  {:>2} {:<14} {:>10} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.3f} {:>8.3f} {:>8}  "
        "{}\n",
        b.at("index").get<int>(), b.at("exchange").get<std::string>(), readable_bytes(ms("bytes")),
        ms("ready_ms"), ms("launch_ms"), ms("start_ms"), ms("end_ms"), ms("hidden_ms"),
        ms("exposed_ms"), waits, straggler_of(b));
  }
  return text;
}

}  // namespace shakedown::training
