#include "training/measure/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/nvml.hpp"
#include "common/text_table.hpp"
#include "common/verdict.hpp"

namespace shakedown::training {
namespace {

std::string text_of_rate(const Throughput& measured) {
  return fmt::format(
      "{:.1f} total, {:.1f} per rank ({})", measured.images_per_s, measured.images_per_s_per_rank,
      measured.interval ? fmt::format("95 % interval {:.1f} - {:.1f}", measured.interval->low,
                                      measured.interval->high)
                        : "fewer than 25 steps: no interval");
}

std::string text_of_exchange(const ExchangeSums& sums) {
  std::vector<std::string> parts;
  if (sums.all_ms > 0) parts.push_back(fmt::format("{:.2f} ms per step", sums.all_ms));
  if (sums.push_ms) parts.push_back(fmt::format("{:.2f} ms to push gradients", *sums.push_ms));
  if (sums.pull_ms) parts.push_back(fmt::format("{:.2f} ms to pull weights", *sums.pull_ms));
  if (parts.empty()) return "";
  return labelled("exchange",
                  fmt::format("{}, waiting for other ranks included", fmt::join(parts, ", ")));
}

std::string text_of_staleness(const std::vector<long>& updates) {
  if (updates.empty()) return "";
  const long all = std::accumulate(updates.begin(), updates.end(), 0L);
  return labelled(
      "staleness",
      fmt::format("{:.0f} % of the gradients were not stale, the oldest was {} updates "
                  "behind",
                  100.0 * static_cast<double>(updates.front()) / static_cast<double>(all),
                  updates.size() - 1));
}

std::string text_of_memory(const Throughput& measured) {
  const auto& bytes = measured.peak_memory_bytes;
  const bool alike = std::all_of(bytes.begin(), bytes.end(), [&](double b) {
    return b < 1.01 * bytes.front() && b > 0.99 * bytes.front();
  });
  std::string text = fmt::format(
      "{} planned and allocated {}", readable_bytes(bytes.front()),
      alike ? "per rank"
            : fmt::format("on rank 0, {} on the others",
                          readable_bytes(*std::max_element(bytes.begin() + 1, bytes.end()))));
  if (const double process = measured.process_memory_bytes.front(); std::isfinite(process))
    text += fmt::format(", {} in the process", readable_bytes(process));
  return text;
}

std::string text_of_gpu(const GpuHealth& health) {
  if (!std::isfinite(health.power_w.front())) return "";
  std::string text = fmt::format("{:.0f} W, {:.0f} MHz, {:.0f} C (rank 0)", health.power_w.front(),
                                 health.sm_clock_mhz.front(), health.temperature_c.front());
  if (std::isfinite(health.joules_per_image))
    text += fmt::format(", {:.3f} J/image", health.joules_per_image);
  const auto throttled =
      std::find_if(health.throttle_reasons.begin(), health.throttle_reasons.end(),
                   [](const std::string& reasons) { return !reasons.empty(); });
  if (throttled != health.throttle_reasons.end())
    text += *throttled == kUnknownText ? ", throttle reasons unknown"
                                       : ", clocks throttled: " + *throttled;
  return labelled("GPU", text);
}

constexpr double kWaited = 0.05;  // of an exchange's time: less is not worth a name

std::string straggler_of(const ExchangeTimes& e) {
  if (!e.waiting) return "";
  if (e.waiting->ms < kWaited * (e.end_ms - e.start_ms)) return "-";
  return fmt::format("{}: {:.0f} %", e.waiting->straggler, 100 * e.waiting->share);
}

}  // namespace

std::string summary_of(const Throughput& measured, const ExchangeSums& exchange) {
  std::string text = labelled("images/s", text_of_rate(measured)) +
                     labelled("step", fmt::format("{:.2f} ms median, {:.2f} ms p95, CV {:.1f} %",
                                                  measured.step_ms_p50, measured.step_ms_p95,
                                                  100 * measured.step_ms_cv)) +
                     text_of_exchange(exchange) + text_of_staleness(measured.staleness_updates) +
                     labelled("loss", fmt::format("{:.4f} first, {:.4f} last", measured.loss_first,
                                                  measured.loss_last)) +
                     labelled("memory", text_of_memory(measured));
  if (measured.skipped_steps > 0)
    text += labelled("skipped", fmt::format("{} steps whose float16 gradients overflowed",
                                            measured.skipped_steps));
  return measured.health ? text + text_of_gpu(*measured.health) : text;
}

std::string summary_of(const Certificate& certificate) {
  if (!certificate.applies()) return wrapped("certificate  waived: " + certificate.waived, 13);
  std::string text = fmt::format("certificate  {}: ", name_of(certificate.outcome));
  if (certificate.census.pass)
    text += fmt::format(
        "each rank's gradients are in every average once (stamped: one of {} ranks that is lost, "
        "doubled or swapped shows)",
        certificate.census.ranks);
  if (certificate.census.pass && certificate.inputs_compared)
    text += "; each has the batch made for it";
  const WeightDifference& found = certificate.difference;
  if (!certificate.cause.empty()) {
    text += (certificate.census.pass ? "; but " : "") + certificate.cause;
  } else if (certificate.reference.empty()) {
    text += "; its weights are the reference of others";
  } else {
    const std::string single =
        std::isfinite(found.tolerance) ? fmt::format(" (tolerance {:.2g})", found.tolerance) : "";
    text += fmt::format(
        "; weights after each of 3 steps at learning rate {:g} compared with {}: {} differs most, "
        "by {:.2g} of its movement (tolerance {:.2g}), a weight by {:.2g}{}",
        certificate.learning_rate, certificate.reference, found.tensor, found.relative_diff,
        found.relative_tolerance, found.max_abs_diff, single);
  }
  return wrapped(text, 13);
}

std::string summary_of(const Breakdown& b) {
  return labelled("breakdown",
                  fmt::format("{:.2f} ms traced: {:.2f} forward and backward, {:.2f} exposed "
                              "communication, {:.2f} input, {:.2f} optimizer; {:.2f} of "
                              "communication hidden",
                              b.step_ms, b.compute_ms, b.exposed_comm_ms, b.input_stall_ms,
                              b.optimizer_ms, b.hidden_comm_ms));
}

std::string table_of(const std::vector<ExchangeTimes>& exchanges) {
  if (exchanges.empty()) return "";
  const std::vector<Column> columns{
      {"", "ms, exchange", 17}, {"", "bytes", 9},    {"", "ready", 7},
      {"", "start", 7},         {"", "end", 7},      {"", "hidden", 6},
      {"", "exposed", 7},       {"mean", "wait", 6}, {"strag-", "gler", 7}};
  std::string text = heading(columns);
  for (const ExchangeTimes& e : exchanges) {
    const auto ms = [](double value) { return fmt::format("{:.3f}", value); };
    text += row(columns, {fmt::format("{:>2} {}", e.index, e.what), readable_bytes(e.bytes),
                          ms(e.ready_ms), ms(e.start_ms), ms(e.end_ms), ms(e.hidden_ms),
                          ms(e.exposed_ms), e.waiting ? ms(e.waiting->ms) : "-", straggler_of(e)});
  }
  return text;
}

}  // namespace shakedown::training
