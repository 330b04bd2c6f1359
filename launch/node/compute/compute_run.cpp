#include "launch/node/compute/compute_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "common/csv.hpp"
#include "common/program.hpp"
#include "common/progress.hpp"

namespace shakedown::node {
namespace {

using Tests = std::vector<std::unique_ptr<RateTest>>;

std::string list_of(const std::vector<ProductType>& types) {
  std::string list;
  for (const ProductType type : types) list += std::string(name_of(type)) + " ";
  return list;
}

bool lists(const std::string& list, const std::string& name) {
  return (" " + list).find(" " + name + " ") != std::string::npos;
}

/// "fp32, bf16": a list as list_of makes it.
std::string in_words(const std::string& list) {
  std::istringstream words(list);
  return fmt::format(
      "{}",
      fmt::join(std::vector<std::string>{std::istream_iterator<std::string>(words), {}}, ", "));
}

/// Those requested, else those that every rank's device has. Throws UsageError where a requested
/// one is missing. Collective.
std::vector<ProductType> agreed_types(const ComputeOptions& options, const Bench& bench) {
  const std::vector<std::string> all =
      bench.session.all_gather(list_of(product_types(bench.device())));
  std::vector<ProductType> types;
  for (const ProductType type : all_product_types()) {
    const std::string name = name_of(type);
    const auto lacks = std::find_if(all.begin(), all.end(),
                                    [&](const std::string& list) { return !lists(list, name); });
    const bool requested =
        std::find(options.types.begin(), options.types.end(), name) != options.types.end();
    if (requested && lacks != all.end())
      throw UsageError(fmt::format("--types {}: the device of rank {} has only {}", name,
                                   lacks - all.begin(), in_words(*lacks)));
    if (requested || (options.types.empty() && lacks == all.end())) types.push_back(type);
  }
  return types;
}

/// The first rank of each model chooses the algorithm, so that its peers compute the same bits.
std::unique_ptr<RateTest> agreed_product_test(const Bench& bench, ProductType type, int n) {
  const std::vector<std::string> models = bench.session.all_gather(bench.device().identity().model);
  const auto self = static_cast<std::size_t>(bench.session.rank());
  const auto leader = static_cast<std::size_t>(
      std::find(models.begin(), models.end(), models[self]) - models.begin());
  std::unique_ptr<RateTest> test;
  if (leader == self) test = make_product_test(bench, type, n, "");
  const std::string chosen =
      bench.session.all_gather(test ? test->series().front().detail : "")[leader];
  return test ? std::move(test) : make_product_test(bench, type, n, chosen);
}

Tests make_tests(const ComputeOptions& options, const Bench& bench) {
  Tests tests;
  const BackendKind kind = bench.device().kind();
  if (options.has("products"))
    for (const ProductType type : agreed_types(options, bench))
      tests.push_back(agreed_product_test(bench, type, product_size(options, kind)));
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

/// The tests that have one of these metrics, counted over all tests; the others are dropped.
Tests only(Tests tests, const std::vector<std::size_t>& metrics) {
  Tests kept;
  std::size_t first = 0;
  for (auto& test : tests) {
    const std::size_t end = first + test->series().size();
    const bool any = std::any_of(metrics.begin(), metrics.end(),
                                 [&](std::size_t m) { return m >= first && m < end; });
    first = end;
    if (any) kept.push_back(std::move(test));
  }
  return kept;
}

/// Rank 0 alone reads the file. Collective.
ComputeReference open_reference(const ComputeOptions& options, const Bench& bench) {
  if (options.reference.empty()) return {};
  std::string text;
  if (bench.session.is_root()) {
    std::ifstream in(options.reference, std::ios::binary);
    if (!in)
      throw UsageError(fmt::format("--reference {}: cannot be read: {}", options.reference,
                                   std::strerror(errno)));
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const BackendKind kind = bench.device().kind();
  return ComputeReference(options.reference, bench.session.all_gather(text).front(),
                          product_size(options, kind), buffer_bytes(options, kind),
                          options.seconds);
}

class Writer {
 public:
  Writer(const ComputeOptions& options, const Bench& bench, Record& record)
      : session_(bench.session),
        record_(record),
        csv_({"--csv", bench.session.is_root() ? options.csv : ""},
             {"rank", "host", "gpu", "model", "test", "rate", "unit", "sm_clock_mhz", "power_w",
              "temperature_c", "throttle_reasons", "rate_per_ghz", "correct", "pass"}),
        size_(product_size(options, bench.device().kind())),
        bytes_(buffer_bytes(options, bench.device().kind())),
        identity_{{"backend", name_of(bench.device().kind())},
                  {"world_size", bench.session.world_size()}},
        seconds_(options.seconds) {}

  /// `pass`: 1, and 2 of what was measured again.
  void write(const Results& results, int pass) {
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      for (std::size_t metric = 0; metric < results[rank].series.size(); ++metric) {
        Json line = merged(identity_, {{"rank", rank}, {"pass", pass}, {"seconds", seconds_}});
        line.update(record_of(results[rank], metric));
        if (results[rank].series[metric].metric.follows_clock)
          line["size"] = size_;
        else
          line["bytes"] = bytes_;
        record_.write("compute", line);
        csv_.add(line);
      }
  }
  void write(const Verdict& verdict) {
    record_.write("verdict", merged(identity_, shakedown::record_of(verdict)));
  }
  /// The newest sample of each of the test's metrics that has one of this round and is not written
  /// yet: what was measured outlives a crash. Collective.
  void write_round(const RateTest& test, int round, int pass) {
    for (const Series& series : test.series()) {
      std::size_t& written = written_[{pass, series.metric.name}];
      if (series.samples.size() <= written) continue;
      written = series.samples.size();
      Json line = merged(identity_, {{"pass", pass}, {"round", round}, {"seconds", seconds_}});
      line.update(round_record_of(session_, series));
      record_.write("compute_round", line);
    }
  }

 private:
  const MpiSession& session_;
  Record& record_;
  CsvFile csv_;
  int size_;
  std::size_t bytes_;
  Json identity_;
  double seconds_;
  std::map<std::pair<int, std::string>, std::size_t> written_;  // samples by pass and metric
};

/// All products of a cool device first, the shortest ones before those that heat it; then all tests
/// under load, one right after the other, so that a product finds the device as hot as it leaves
/// it.
void measure(const Tests& tests, const ComputeOptions& options, const Bench& bench, Writer& writer,
             int pass) {
  Progress progress(pass == 1 ? "measuring" : "measuring again",
                    static_cast<long>(tests.size()) * options.rounds, "tests",
                    bench.session.is_root());
  const bool heats = bench.device().kind() == BackendKind::gpu && options.has("products");
  long done = 0;
  for (const auto& test : tests) test->forget();
  for (int round = 0; round < options.rounds; ++round) {
    if (heats)
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(1.0, options.seconds)));
    for (auto test = tests.rbegin(); test != tests.rend(); ++test) {
      (*test)->measure_cool();
      writer.write_round(**test, round, pass);
    }
    for (const auto& test : tests) {
      test->measure();
      writer.write_round(*test, round, pass);
      progress.update(++done);
    }
  }
}

/// Notes who else uses the ranks' GPUs, before this job and now. Collective.
void note_others(Results& results, const std::vector<NodeReport>& before,
                 const MpiSession& session) {
  std::vector<std::string> gpus;
  for (const RankResult& result : results) gpus.push_back(result.gpu);
  const auto uses = used_by_others(gpus, before, read_processes(session));
  for (std::size_t rank = 0; rank < results.size(); ++rank) results[rank].in_use = uses[rank];
}

/// The findings of `again` with the metrics' places among all tests.
RateJudgement renumbered(RateJudgement again, const Results& all, const Results& few) {
  for (SlowFinding& finding : again.findings) {
    const std::string& name = few.front().series[finding.metric].metric.name;
    const auto& series = all.front().series;
    finding.metric = static_cast<std::size_t>(
        std::find_if(series.begin(), series.end(),
                     [&](const Series& one) { return one.metric.name == name; }) -
        series.begin());
  }
  return again;
}

}  // namespace

ExitCode run_compute(const ComputeOptions& options, Backend& backend, MpiSession& session,
                     const std::vector<NodeReport>& before, Record& record) {
  const auto stream = backend.device->make_stream();
  std::optional<Fault> fault = parse_fault(
      options.fault, {FaultKind::product, FaultKind::copy, FaultKind::slow}, session.world_size());
  if (fault) say(session, line_of(*fault));
  if (fault && fault->rank != session.rank()) fault.reset();
  const DeviceIdentity device = backend.device->identity();
  const Bench bench{
      backend,     session,         *stream, device.uuid.empty() ? nullptr : Nvml::open(),
      device.uuid, options.seconds, fault};
  const ComputeReference reference = open_reference(options, bench);
  Writer writer(options, bench, record);
  say(session, fmt::format("{} rank{}, {}, {}", session.world_size(),
                           session.world_size() == 1 ? "" : "s", backend.remark, device.model));

  Tests tests = make_tests(options, bench);
  measure(tests, options, bench, writer, 1);
  const auto gathered = [&] {
    Results results = gather(session, device, tests);
    note_others(results, before, session);
    return results;
  };
  Results results = gathered();
  writer.write(results, 1);
  say(session, table_of(results));

  RateJudgement judgement = judge(results, reference);
  if (const std::string cached = cached_by(options, backend.kind); !cached.empty())
    judgement.not_judged.push_back(cached);
  if (const std::vector<std::size_t> again = suspects(judgement); !again.empty()) {
    say(session, "slow devices: their tests are measured again");
    tests = only(std::move(tests), again);
    measure(tests, options, bench, writer, 2);
    const Results repeated = gathered();
    writer.write(repeated, 2);
    judgement = confirmed(judgement, renumbered(judge(repeated, reference), results, repeated));
    for (std::size_t rank = 0; rank < results.size(); ++rank) {  // wrong data, or use, this time
      if (results[rank].in_use.empty()) results[rank].in_use = repeated[rank].in_use;
      for (const Series& series : repeated[rank].series)
        for (Series& first : results[rank].series)
          if (first.metric.name == series.metric.name && first.wrong.empty())
            first.wrong = series.wrong;
    }
  }
  const std::vector<Verdict> verdicts = verdicts_of(results, judgement);
  for (const Verdict& verdict : verdicts) {
    writer.write(verdict);
    say(session, line_of(verdict));
  }
  return worst(verdicts);
}

}  // namespace shakedown::node
