#include "collectives/perf/perf_table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "collectives/perf/type_names.hpp"
#include "common/options.hpp"
#include "common/version.hpp"

namespace shakedown::collectives {
namespace {

/// As many decimals as the column has room for, two at most.
std::string fitted(double value, std::size_t width) {
  for (int decimals = 2; decimals >= 0; --decimals) {
    std::string text = fmt::format("{:{}.{}f}", value, width, decimals);
    if (text.size() <= width) return text;
  }
  return fmt::format("{:{}.{}e}", value, width, width >= 7 ? 1 : 0);
}

bool shows_spread(const PerfOptions& options) {
  return !options.as_nccl_tests() || options.one_by_one != 0;
}

std::string transport_versions(const Backend& backend) {
  for (const LibraryVersion& v : library_versions(backend.kind))
    if (v.name == "nccl")
      return fmt::format("nccl-headers={} nccl-library={}", nccl_version_code(v.built),
                         nccl_version_code(v.running));
  return fmt::format("mpi-headers={} mpi-library={}", MpiSession::build_version(),
                     MpiSession::library_version());
}

std::string transport_name(const Communicator& communicator, const Backend& backend) {
  if (!is_mpi(communicator)) return communicator.transport();
  return fmt::format("mpi ({} algorithm)", name_of(backend.mpi_algorithm));
}

}  // namespace

std::string local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

Figures figures_of(const Trial& trial, const Measurement& measured, int ranks, bool checked) {
  Figures f;
  f.time_us = median_of(measured.samples_us);
  f.cputime_us = median_of(measured.enqueue_us);
  f.algbw_gbs = f.time_us > 0 ? static_cast<double>(trial.bytes()) / f.time_us / 1e3 : 0;
  f.busbw_gbs = f.algbw_gbs * trial.operation->bus_factor(ranks);
  if (checked) f.wrong = measured.wrong;
  f.samples =
      measured.slowest_iteration_us.empty() ? measured.samples_us : measured.slowest_iteration_us;
  f.spread = summarize(f.samples);
  return f;
}

std::string preamble(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                     const Backend& backend, const MpiSession& session) {
  std::string text = fmt::format(
      "# shakedown {}, {} over {}, {}\n"
      "# Collective test starting: {}\n"
      "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg "
      "iters: {} validation: {} graph: {} unalign: 0\n",
      git_revision(), backend.remark, transport_name(communicator, backend),
      transport_versions(backend), options.program, plan.sizes.front(), plan.max_bytes, plan.step,
      plan.by_factor ? "factor" : "bytes", options.warmup, options.iterations, options.aggregate,
      options.check, options.graph);
  if (options.blocking == 1) text += "# Blocking Enabled: wait and barrier after each iteration\n";
  if (options.blocking == 2) text += "# Blocking Enabled: wait after each iteration, no barrier\n";
  if (options.blocking == 3)
    text += "# Blocking Enabled: wait and barrier after each iteration; time excludes barrier\n";
  for (const IgnoredOption& ignored : options.ignored)
    if (!ignored.value.empty() && ignored.value != "0")
      text += fmt::format("# {} {}: {}\n", ignored.names, ignored.value, ignored.reason);
  text += "#\n# Using devices\n";
  const DeviceIdentity device = backend.device->identity();
  const auto lines = session.all_gather(fmt::format(
      "#  Rank {:2} Group  0 Pid {:6} on {:>10} device {:2} [{}] {}\n", session.rank(), getpid(),
      session.host(), session.local_rank(), nccl_tests_device(device.pci_id), device.model));
  for (const std::string& line : lines) text += line;
  return text + "#\n";
}

std::string table_header(const PerfOptions& options) {
  const bool spread = shows_spread(options);
  const std::string time = options.cputime != 0 ? "cputime" : "time";
  const auto half = [&](const char* a, const char* b, const char* c, const char* d,
                        std::array<const char*, 4> more) {
    std::string text = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", a, b, c, d);
    if (spread)
      for (const char* m : more) text += fmt::format("  {:>7}", m);
    return text;
  };
  const auto line = [&](std::array<const char*, 5> names, const std::string& of_half) {
    return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}{}", names[0], names[1], names[2],
                       names[3], names[4], of_half, of_half);
  };
  const std::string stamp = options.timestamps != 0 ? "            timestamp" : "";
  const int width = spread ? 69 : 33;
  return line({"", "", "", "", ""}, "")
             .append(fmt::format("{:^{}}{:^{}}\n", "out-of-place", width, "in-place", width)) +
         line(
             {"size", "count", "type", "redop", "root"},
             half(time.c_str(), "algbw", "busbw", "#wrong", {"i_min", "i_max", "i_p99", "i_cv%"})) +
         stamp + "\n" +
         line({"(B)", "(elements)", "", "", ""},
              half("(us)", "(GB/s)", "(GB/s)", "", {"(us)", "(us)", "(us)", "(%)"}));
}

std::string row_start(const Trial& trial) {
  return fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:6}", trial.bytes(), trial.counts.call,
                     nccl_tests_name_of(trial.type),
                     trial.operation->reduces ? name_of(trial.reduction) : "none", trial.root);
}

std::string row_half(const Figures& f, const PerfOptions& options) {
  std::string text =
      fmt::format("  {}  {}  {}  {:>6}", fitted(options.cputime != 0 ? f.cputime_us : f.time_us, 7),
                  fitted(f.algbw_gbs, 6), fitted(f.busbw_gbs, 6),
                  f.wrong ? fmt::format("{:g}", static_cast<double>(*f.wrong)) : "N/A");
  if (shows_spread(options))
    text += fmt::format("  {}  {}  {}  {}", fitted(f.spread.min, 7), fitted(f.spread.max, 7),
                        fitted(f.spread.p99, 7), fitted(100 * f.spread.cv, 7));
  return text;
}

std::string footer(const PerfOptions& options, const Totals& totals) {
  return fmt::format(
      "# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g} {}\n#\n"
      "# Collective test concluded: {}\n#",
      totals.wrong_rows, totals.wrong_rows > 0 ? "FAILED" : "OK", totals.mean_busbw_gbs,
      totals.judgement, options.program);
}

}  // namespace shakedown::collectives
