#include "launch/node/compute/compute_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/judge/series.hpp"
#include "common/judging.hpp"
#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "common/record.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "launch/node/compute/kernels.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {
namespace {

using Tests = std::vector<std::unique_ptr<RateTest>>;

Tests make_tests(const ComputeOptions& options, const Bench& bench) {
  Tests tests;
  const BackendKind kind = bench.device().kind();
  if (options.has("products")) {
    const TypeChoice choice =
        choose_types(options.types.empty() ? soaked(all_product_types()) : all_product_types(),
                     options.types, bench.device(), bench.session);
    if (!options.types.empty()) say(bench.session, choice.remark);
    SupportedTests products = supported_tests(choice.types, bench.session, [&](ProductType type) {
      return make_product_test(bench, product_spec(options, type, bench.unit));
    });
    for (const std::string& remark : products.remarks) say(bench.session, remark);
    tests = std::move(products.tests);
    if (tests.empty() && !options.types.empty())
      throw UsageError(
          fmt::format("--types {}: no product is left", fmt::join(options.types, ",")));
  }
  const std::size_t bytes = buffer_bytes(options, kind);
  try {
    if (options.has("memory")) tests.push_back(make_memory_test(bench, bytes));
    if (options.has("host")) tests.push_back(make_host_test(bench, bytes));
  } catch (const OutOfMemory& error) {
    const std::string& given = options.memory_bytes;
    throw UsageError(fmt::format("--bytes {}: {}",
                                 given.empty() ? readable_bytes(static_cast<double>(bytes)) : given,
                                 error.what()));
  }
  return tests;
}

std::vector<Series> series_of(const Tests& tests) {
  std::vector<Series> all;
  for (const auto& test : tests)
    all.insert(all.end(), test->series().begin(), test->series().end());
  return all;
}

/// The tests that have one of these metrics; the others are dropped.
Tests only(Tests tests, const std::set<std::string>& metrics) {
  std::erase_if(tests, [&](const auto& test) {
    return std::ranges::none_of(
        test->series(), [&](const Series& series) { return metrics.contains(series.metric.name); });
  });
  return tests;
}

class Writer {
 public:
  Writer(const Bench& bench, Record& record)
      : session_(bench.session),
        record_(record),
        identity_{{"backend", name_of(bench.device().kind())},
                  {"world_size", bench.session.world_size()}} {}

  void write(const Verdict& verdict) {
    record_.write("verdict", merged(identity_, shakedown::record_of(verdict)));
  }
  /// The samples of each of the test's metrics that are not written yet: what was measured outlives
  /// a crash. Collective.
  void write_round(const RateTest& test, int round, int look) {
    for (const Series& series : test.series()) {
      std::size_t& written = written_[{look, series.metric.name}];
      Json line = merged(identity_, {{"look", look}, {"round", round}});
      line.update(round_record_of(session_, series, written));
      record_.write("compute_round", line);
      written = series.samples.size();
    }
  }

 private:
  const MpiSession& session_;
  Record& record_;
  Json identity_;
  std::map<std::pair<int, std::string>, std::size_t> written_;  // samples by look and metric
};

/// One right after the other: a product finds the device as hot as the one before has left it.
void measure(const Tests& tests, const ComputeOptions& options, const Bench& bench, Writer& writer,
             int look) {
  long all = 0;
  for (const auto& test : tests) all += test->rounds(options.rounds);
  Progress progress(look == 1 ? "measuring" : "measuring again", all, "tests",
                    bench.session.is_root());
  long done = 0;
  for (const auto& test : tests) test->forget();
  for (int round = 0; round < options.rounds; ++round)
    for (const auto& test : tests) {
      if (round >= test->rounds(options.rounds)) continue;
      test->measure();
      writer.write_round(*test, round, look);
      progress.update(++done);
    }
}

/// Without what an earlier look found as well.
void add_new(const std::vector<Verdict>& found, std::vector<Verdict>& all) {
  for (const Verdict& verdict : found)
    if (std::ranges::none_of(all, [&](const Verdict& other) {
          return other.name == verdict.name && other.cause == verdict.cause;
        }))
      all.push_back(verdict);
}

/// What seemed slow, by its metrics; the same on every rank. Collective.
std::set<std::string> slow_of(Judging& judging, const std::vector<std::string>& metrics) {
  std::set<std::string> slow;
  for (const int id : judging.slow()) slow.insert(metrics[static_cast<std::size_t>(id)]);
  return slow;
}

Bench make_bench(const ComputeOptions& options, Backend& backend, MpiSession& session,
                 Stream& stream, const Unit& unit) {
  std::optional<Fault> fault =
      parse_fault(options.fault, {FaultKind::product, FaultKind::copy, FaultKind::slow},
                  session.world_size(), FaultAmount::of_slow);
  if (fault && fault->held_sms > 0 && unit.uuid.empty())
    throw UsageError(fmt::format("--inject-fault {}: SMs are a GPU's", options.fault));
  if (fault) say(session, line_of(*fault));
  if (fault && fault->rank != session.rank()) fault.reset();
  Bench bench{backend, session,         stream, unit.uuid.empty() ? nullptr : Nvml::open(),
              unit,    options.seconds, fault};
  bench.busy = std::make_shared<Buffer>(bench.device(), sizeof(DuplexTime));
  bench.device().zero(bench.busy->data(), bench.busy->bytes(), stream);
  return bench;
}

}  // namespace

ExitCode run_compute(const ComputeOptions& options, Backend& backend, MpiSession& session,
                     const std::vector<NodeReport>& before, Record& record) {
  const auto stream = backend.device->make_stream();
  const std::vector<Unit> units = units_of(session, backend);
  const Unit& unit = units[static_cast<std::size_t>(session.rank())];
  const Bench bench = make_bench(options, backend, session, *stream, unit);
  Judging judging(options.judge, session, "compute_perf", false);
  Writer writer(bench, record);
  say(session, fmt::format("{} rank{}, {}, {}", session.world_size(),
                           session.world_size() == 1 ? "" : "s", backend.remark, unit.board));

  Tests tests = make_tests(options, bench);
  const std::string cached = cached_by(options, backend.kind);
  std::vector<std::string> metrics;
  for (const Series& series : series_of(tests)) metrics.push_back(series.metric.name);
  std::vector<Verdict> wrong;
  std::set<std::string> slow;
  for (int look = 1; look == 1 || !slow.empty(); ++look) {
    if (look > 1) {
      say(session, fmt::format("slow: {}: measured again", fmt::join(slow, ", ")));
      tests = only(std::move(tests), slow);
    }
    measure(tests, options, bench, writer, look);
    Measured measured = gather(session, units, series_of(tests), look, before);
    for (judge::Observation& one : measured.observations)
      if (one.disturbed_by.empty() && one.metric.starts_with("memory/")) one.disturbed_by = cached;
    for (const judge::Observation& one : measured.observations) {  // none but on rank 0
      std::optional<int> id;
      if (const auto metric = std::ranges::find(metrics, one.metric); metric != metrics.end())
        id = static_cast<int>(metric - metrics.begin());
      judging.add(one, record, id);
    }
    if (session.is_root()) say(session, table_of(measured.observations, judging.limits()));
    add_new(wrong_data(measured), wrong);
    slow = slow_of(judging, metrics);
  }
  for (const Verdict& verdict : wrong) {
    judging.add(verdict, verdict.hosts);
    say(session, line_of(verdict));
    writer.write(verdict);
  }
  const judge::Judgement judgement = judging.judgement();
  if (session.is_root()) {
    std::string text = judge::text_of(judgement);
    text.pop_back();  // the last line's end, which say() adds
    say(session, text);
    for (const Verdict& verdict : judgement.findings) writer.write(verdict);
    writer.write(judgement.job);
  }
  const Outcome outcome = judgement.job.outcome;
  return exit_code_of(static_cast<Outcome>(
      static_cast<int>(session.all_gather(static_cast<double>(outcome)).front())));
}

namespace {

constexpr int kCpuSize = 512;
constexpr std::size_t kGpuMiB = 1024;
constexpr std::size_t kCpuMiB = 16;

}  // namespace

bool ComputeOptions::has(const std::string& test) const {
  return std::find(tests.begin(), tests.end(), test) != tests.end();
}

void declare_options(OptionSet& options, ComputeOptions& values) {
  std::vector<std::string> types;
  for (const ProductType type : all_product_types()) types.emplace_back(name_of(type));
  options.heading("Measurement");
  options
      .add("--tests", values.tests,
           "products: FLOP per SM cycle, SM clock and TFLOP/s of matrix products under "
           "load\nmemory: "
           "GB/s of device memory\nhost: GB/s between host and device, each GPU alone and all at "
           "once")
      .one_of({"products", "memory", "host"});
  options
      .add("--types", values.types,
           "types of the products; mxfp8 and nvfp4 need compute capability 10.0 and CUDA 12.8, and "
           "have not run there yet")
      .one_of(types)
      .default_text("all that every device supports, without mxfp8 and nvfp4");
  options.add("--size", values.size, "rows and columns of the matrices, a multiple of 32")
      .at_least(32)
      .at_most(65536)
      .default_text(fmt::format(
          "whole waves of tiles on gpu, 8192 x 8448 x 8192 on 132 SMs; {} on cpu", kCpuSize));
  options
      .add("--bytes", values.memory_bytes,
           "size of each buffer in device memory, a multiple of 32K: 256M, 1G; in host memory 256M "
           "at most")
      .metavar("SIZE")
      .default_text(fmt::format("{} MiB on gpu, {} MiB on cpu", kGpuMiB, kCpuMiB));
  options
      .add("--seconds", values.seconds,
           "timed seconds of each type's products, 16 batches of 20 ms at least, after a warm-up")
      .at_least(0.001)
      .at_most(300);
  options
      .add(
          "--rounds", values.rounds,
          "interleaved rounds of memory and host: 2 samples per access and round, 4 per direction; "
          "fewer than 5 rounds of host are not judged")
      .at_least(1);
  options.refuse("--csv", kCsvOfReport);
  options.add("--record", values.record, ".jsonl file to which the results are appended")
      .metavar("FILE");
  declare_options(options, values.backend);
  options.heading("Verdict");
  declare_options(options, values.judge);
  declare_fault_option(options, values.fault);
  options.check([&] {
    if (values.size % 32 != 0)
      throw UsageError(fmt::format("--size {}: must be a multiple of 32", values.size));
    buffer_bytes(values, BackendKind::cpu);
  });
}

ProductSpec product_spec(const ComputeOptions& options, ProductType type, const Unit& unit) {
  if (options.size == 0 && unit.multiprocessors > 0)
    return whole_waves(type, unit.multiprocessors, unit.compute_capability);
  const int n = options.size != 0 ? options.size : kCpuSize;
  return {type, n, n, n};
}

std::size_t buffer_bytes(const ComputeOptions& options, BackendKind kind) {
  if (options.memory_bytes.empty()) return (kind == BackendKind::gpu ? kGpuMiB : kCpuMiB) << 20;
  const std::size_t bytes = parse_bytes("--bytes", options.memory_bytes);
  if (bytes == 0 || bytes % ComputeKernels::kChunkBytes != 0)
    throw UsageError(
        fmt::format("--bytes {}: must be a multiple of 32K above 0", options.memory_bytes));
  return bytes;
}

std::string cached_by(const ComputeOptions& options, BackendKind kind) {
  constexpr std::size_t kBeyondCaches = std::size_t{256} << 20;  // twice the L2 of a B200
  const std::size_t bytes = buffer_bytes(options, kind);
  if (kind == BackendKind::cpu || !options.has("memory") || bytes >= kBeyondCaches) return "";
  return fmt::format("--bytes {}: the GPU's caches may hold it: memory is measured from 256M on",
                     options.memory_bytes);
}

}  // namespace shakedown::node
