#include "collectives/links/link_options.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "collectives/injected_delay.hpp"
#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kGpuMiB = 64;
constexpr int kCpuMiB = 4;

/// Of 8 bytes, in a message whose bandwidth is measured. Throws UsageError.
std::size_t message_words(const LinkOptions& options, BackendKind kind) {
  const std::size_t mib = kind == BackendKind::gpu ? kGpuMiB : kCpuMiB;
  const std::size_t bytes =
      options.bytes.empty() ? mib << 20 : parse_bytes("--bytes", options.bytes);
  if (bytes % 8 != 0 || bytes == 0)
    throw UsageError(fmt::format("--bytes {}: must be a multiple of 8", options.bytes));
  return bytes / 8;
}

}  // namespace

void declare_options(OptionSet& options, LinkOptions& values) {
  options.heading("Measurement");
  options
      .add("--bytes", values.bytes, "size of the messages for bandwidth: 64K, 4M; a multiple of 8")
      .metavar("SIZE")
      .default_text(fmt::format("{} MiB on gpu, {} MiB on cpu", kGpuMiB, kCpuMiB));
  options.add("--iterations", values.iterations, "timed messages per link and direction")
      .at_least(1);
  options.add("--warmup", values.warmup, "messages before the timed ones").at_least(1);
  options.add("--latency-iterations", values.latency_iterations, "timed round trips of 8 bytes")
      .at_least(1);
  options.add("--alone", values.alone,
              "measure each pair a second time while no other is busy; off saves time on many "
              "ranks");
  options
      .add("--matrix", values.matrix,
           "table with every link (on) or one line per rank (off); auto: off above 16 ranks")
      .one_of({"auto", "on", "off"});
  options.add("--record", values.record, "append the measurements to this .jsonl file")
      .metavar("FILE");
  declare_options(options, values.backend);
  options.heading("Verdict");
  options
      .add("--outlier-mad", values.outlier.mad,
           "multiple of 1.4826 MAD by which an outlier is slower than the median, and ...")
      .at_least(0)
      .metavar("X");
  options
      .add("--outlier-percent", values.outlier.percent,
           "... percentage of the median by which it is slower")
      .at_least(0)
      .metavar("PERCENT");
  options.add("--fail-on-outlier", values.fail_on_outlier,
              "exit with 1 when there is an outlier; off: report it as INCONCLUSIVE");
  options
      .add("--min-bandwidth", values.min_bandwidth_gbs,
           "lowest bandwidth allowed for a link in each direction")
      .at_least(0)
      .metavar("GB/S")
      .default_text("none");
  options.add("--max-latency", values.max_latency_us, "longest latency allowed for a link")
      .at_least(0)
      .metavar("US")
      .default_text("none");
  options.heading("");
  options.add("--inject-fault", values.inject_fault,
              "flip a bit of every message that this rank receives");
  options.add("--inject-delay", values.inject_delay,
              "RANK:MICROSECONDS: that rank sleeps before each of its messages");
  options.add("--pretend-nodes", values.pretend_nodes, "treat the ranks as this many nodes")
      .at_least(1);
  options.check([&] { message_words(values, BackendKind::cpu); });
}

MessageSettings message_settings(const LinkOptions& options, BackendKind kind, int rank,
                                 int ranks) {
  if (ranks < 2)
    throw UsageError("link_matrix needs at least 2 ranks: launch/mpi -n 2 link_matrix");
  if (options.inject_fault >= ranks)
    throw UsageError(fmt::format("--inject-fault {}: no such rank (this job has {} ranks)",
                                 options.inject_fault, ranks));
  const InjectedDelay delay = parse_delay(options.inject_delay, ranks);
  return {message_words(options, kind),
          options.iterations,
          options.warmup,
          options.latency_iterations,
          options.inject_fault == rank,
          delay.rank == rank ? delay.microseconds : 0};
}

}  // namespace shakedown::collectives
