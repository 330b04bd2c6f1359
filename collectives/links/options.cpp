#include "collectives/links/options.hpp"

#include <fmt/format.h>

#include <charconv>

#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kGpuMiB = 64;
constexpr int kCpuMiB = 4;
constexpr int kMostExact = 64;  // ranks of which each pair is measured
constexpr int kRounds = 32;     // of more

/// Number of 8-byte words in a message whose bandwidth is measured. Throws UsageError.
std::size_t message_words(const LinkOptions& options, BackendKind kind) {
  const std::size_t mib = kind == BackendKind::gpu ? kGpuMiB : kCpuMiB;
  const std::size_t bytes =
      options.bytes.empty() ? mib << 20 : parse_bytes("--bytes", options.bytes);
  if (bytes % 8 != 0 || bytes == 0)
    throw UsageError(fmt::format("--bytes {}: must be a multiple of 8 above 0", options.bytes));
  return bytes / 8;
}

}  // namespace

void declare_options(OptionSet& options, LinkOptions& values) {
  options.heading("Measurement");
  options
      .add("--bytes", values.bytes,
           "size of the messages that measure bandwidth, a multiple of 8: 64K, 4M")
      .metavar("SIZE")
      .default_text(fmt::format("{} MiB on gpu, {} MiB on cpu", kGpuMiB, kCpuMiB));
  options.add("--iterations", values.iterations, "timed messages per link and direction")
      .at_least(1);
  options.add("--warmup", values.warmup, "messages before the timed ones").at_least(1);
  options.add("--latency-iterations", values.latency_iterations, "timed round trips of 8 bytes")
      .at_least(1);
  options.add("--alone", values.alone,
              "also measure each pair while no other is busy; off saves time on many ranks");
  options
      .add("--pairs", values.pairs,
           "auto: each pair of up to 64 ranks; of more, rounds in which each node measures another "
           "one, rank by rank and in an eighth more of them between rails, and a suspect is "
           "measured "
           "again; all: rounds until each pair of "
           "nodes "
           "was measured; or the number of rounds. Of one node each pair is measured")
      .metavar("auto|all|ROUNDS")
      .default_text("auto, which is 32 rounds above 64 ranks");
  options
      .add("--matrix", values.matrix,
           "print every link; auto: of up to 16 ranks. results/report has those of more")
      .one_of({"auto", "on", "off"});
  options.refuse("--csv", kCsvOfReport);
  options.add("--record", values.record, ".jsonl file to which the results are appended")
      .metavar("FILE");
  declare_options(options, values.backend);
  options.heading("Verdict");
  judge::declare_options(options, values.judge);
  options
      .add("--min-bandwidth", values.min_bandwidth_gbs,
           "lowest one-way bandwidth of a link, by messages, and where pairs are sampled (--pairs) "
           "the "
           "lowest median of a rank's links between nodes; below it is FAIL; 0: no bar")
      .at_least(0)
      .metavar("GB/S");
  options
      .add("--max-latency", values.max_latency_us,
           "highest latency of a link; above it is FAIL; 0: no bar")
      .at_least(0)
      .metavar("US");
  declare_pretended_nodes(options, values.pretend_nodes);
  options.refuse(
      "--outlier-mad,--outlier-percent,--fail-on-outlier",
      "a link is slow by its floor in the table of limits (--limits FILE), and then fails");
  options.check([&] {
    message_words(values, BackendKind::cpu);
    sampled_rounds(values.pairs, {});
  });
}

int sampled_rounds(const std::string& pairs, const NodeMap& nodes) {
  const int count = static_cast<int>(nodes.names.size());
  const bool exact = static_cast<int>(nodes.node_of.size()) <= kMostExact;
  int rounds = pairs == "all" ? (exact ? 0 : count) : exact ? 0 : kRounds;
  if (pairs != "auto" && pairs != "all") {
    const auto [end, error] = std::from_chars(pairs.data(), pairs.data() + pairs.size(), rounds);
    if (error != std::errc() || end != pairs.data() + pairs.size() || rounds < 1)
      throw UsageError(fmt::format("--pairs {}: must be auto, all or a number of rounds", pairs));
  }
  return count > 1 ? rounds : 0;
}

MessageSettings message_settings(const LinkOptions& options, BackendKind kind, int ranks) {
  if (ranks < 2)
    throw UsageError("link_matrix needs at least 2 ranks: launch/mpi -n 2 link_matrix");
  return {message_words(options, kind), options.iterations, options.warmup,
          options.latency_iterations};
}

}  // namespace shakedown::collectives
