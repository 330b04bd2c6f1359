// What a "step" record says to people, and whether it counts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/error.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {

void check_loss(double first, double last) {
  if (std::isfinite(last)) return;
  throw FailError(
      fmt::format("the loss is not finite any more (it began at {:.4g}): a lower --learning-rate, "
                  "or another --precision",
                  first));
}

void check_trained(const Json& step) {
  check_loss(step.at("loss_first").get<double>(), step.at("loss_last").get<double>());
  const int skipped = step.at("skipped_timed_steps").get<int>();
  if (skipped == step.at("iterations").get<int>())
    throw FailError(
        fmt::format("all {} timed steps were skipped, as their gradients were not finite: nothing "
                    "was trained",
                    skipped));
}

namespace {

std::string text_of_interval(const Json& step) {
  if (step.at("images_per_s_low").is_null()) return "fewer than 25 steps: no interval";
  return fmt::format("95 % interval {:.1f} - {:.1f}", step["images_per_s_low"].get<double>(),
                     step["images_per_s_high"].get<double>());
}

}  // namespace

std::string summary_of_step(const Json& step) {
  const auto number = [&](const char* key) { return step.at(key).get<double>(); };
  const auto memory = step.at("peak_memory_bytes").get<std::vector<double>>();
  const bool alike = std::all_of(memory.begin(), memory.end(), [&](double bytes) {
    return bytes < 1.01 * memory.front() && bytes > 0.99 * memory.front();
  });
  std::string exchange;
  for (const auto& [key, what] :
       {std::pair{"comm_ms", "a step"}, std::pair{"push_ms", "to push gradients"},
        std::pair{"pull_ms", "to pull weights"}})
    if (step.contains(key))
      exchange +=
          fmt::format("{}{:.2f} ms {}", exchange.empty() ? "exchange  " : ", ", number(key), what);
  if (!exchange.empty()) exchange += ", waiting for other ranks included\n";
  if (step.contains("staleness_updates")) {
    const auto behind = step.at("staleness_updates").get<std::vector<long>>();
    const long all = std::accumulate(behind.begin(), behind.end(), 0L);
    exchange += fmt::format(
        "staleness {:.0f} % of the gradients were not stale, the oldest was {} updates behind\n",
        100.0 * static_cast<double>(behind.front()) / static_cast<double>(all), behind.size() - 1);
  }
  std::string text = fmt::format(
      "images/s  {:.1f} total ({}), {:.1f} per rank\n"
      "step      {:.2f} ms median, {:.2f} ms p95, CV {:.1f} %\n"
      "{}"
      "loss      {:.4f} first, {:.4f} last\n"
      "memory    {} planned and allocated {}",
      number("images_per_s"), text_of_interval(step), number("images_per_s_per_rank"),
      number("step_ms_p50"), number("step_ms_p95"), 100 * number("step_ms_cv"), exchange,
      number("loss_first"), number("loss_last"), readable_bytes(memory.front()),
      alike ? "a rank"
            : fmt::format("on rank 0, {} on the others",
                          readable_bytes(*std::max_element(memory.begin() + 1, memory.end()))));
  if (step.at("process_memory_bytes").at(0).is_number() &&
      std::isfinite(step.at("process_memory_bytes").at(0).get<double>()))
    text += fmt::format(", {} in the process",
                        readable_bytes(step.at("process_memory_bytes").at(0).get<double>()));
  if (step.at("skipped_steps").get<int>() > 0)
    text += fmt::format("\nskipped   {} steps whose float16 gradients overflowed",
                        step.at("skipped_steps").get<int>());
  if (step.contains("power_w") && std::isfinite(step["power_w"][0].get<double>())) {
    text += fmt::format("\nGPU       {:.0f} W, {:.0f} MHz, {:.0f} C (rank 0)",
                        step["power_w"][0].get<double>(), step["sm_clock_mhz"][0].get<double>(),
                        step["temperature_c"][0].get<double>());
    if (std::isfinite(number("joules_per_image")))
      text += fmt::format(", {:.3f} J/image", number("joules_per_image"));
    for (const Json& reasons : step["throttle_reasons"])
      if (reasons != "") {
        text += reasons.is_null() ? ", throttle reasons unknown"
                                  : ", held back by " + reasons.get<std::string>();
        break;
      }
  }
  return text + "\n";
}

}  // namespace shakedown::training
