#include "collectives/perf/output.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "collectives/perf/bench.hpp"
#include "collectives/perf/options.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/placement.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

// From here on a collective shows its links' bandwidth: below, its time varies with other work.
constexpr std::size_t kBandwidthBytes = std::size_t{16} << 20;
constexpr std::size_t kBandwidthBytesOnCpu = 65537;

/// How a rate was measured, next to the transport and the ranks.
constexpr const char* kRateConditions[] = {
    "dtype",         "bytes",       "in_place",     "reduction", "root",
    "mpi_algorithm", "launch_mode", "registration", "aggregate", "blocking",
    "average",       "ctas",        "cta_policy",   "split",     "traffic"};

const char* launch_mode(const PerfOptions& options) {
  return options.graph > 0 ? "graph" : options.one_by_one != 0 ? "one_by_one" : "back_to_back";
}

}  // namespace

Json conditions_of(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                   const Backend& backend, const MpiSession& session) {
  const NodeMap nodes = map_nodes(session.hosts());
  const auto models = session.all_gather(backend.device->identity().model);
  const std::set<std::string> devices(models.begin(), models.end());
  Json conditions{{"backend", name_of(backend.kind)},
                  {"device", fmt::format("{}", fmt::join(devices, ", "))},
                  {"transport", communicator.transport()},
                  {"launch_mode", launch_mode(options)},
                  {"world_size", communicator.size()},
                  {"nodes", nodes.names.size()},
                  {"ranks_per_node", nodes.ranks_per_node()},
                  {"registration", options.registration},
                  {"aggregate", plan.bench.aggregate},
                  {"blocking", options.blocking},
                  {"average", options.average},
                  {"ctas", options.backend.ctas},
                  {"iterations_per_sample", plan.bench.iterations}};
  if (options.cta_policy >= 0) conditions["cta_policy"] = options.cta_policy;
  if (!plan.groups.empty()) {
    conditions["groups"] = 1 + *std::max_element(plan.groups.begin(), plan.groups.end());
    conditions["split"] = plan.split;
  }
  if (is_mpi(communicator)) conditions["mpi_algorithm"] = name_of(backend.mpi_algorithm);
  return conditions;
}

Json record_of(const Trial& trial, const Measurement& measured, const Figures& figures,
               const Plan& plan, const MpiSession& session) {
  const Summary& s = figures.spread;
  const Interval interval = bootstrap_median(figures.samples);
  // algbw and busbw are the table's, of nccl-tests' time; one by one, samples are iterations
  Json fields{{"operation", trial.operation->name},
              {"dtype", name_of(trial.type)},
              {"reduction", trial.operation->reduces ? name_of(trial.reduction) : "none"},
              {"root", trial.root},
              {"bytes", trial.bytes()},
              {"count", trial.counts.call},
              {"in_place", trial.in_place},
              {"time_us_p50", s.median},
              {"time_us_low", interval.low},
              {"time_us_high", interval.high},
              {"time_us_p95", s.p95},
              {"time_us_p99", s.p99},
              {"time_us_max", s.max},
              {"time_us_cv", s.cv},
              {"enqueue_us_p50", figures.cputime_us},
              {"algbw_gbs", figures.algbw_gbs},
              {"busbw_gbs", figures.busbw_gbs},
              {"iterations", measured.iterations},
              {"iterations_checked", measured.iterations_checked},
              {"wrong_elements", figures.wrong ? Json(*figures.wrong) : Json(nullptr)},
              {"samples_us", figures.samples}};
  if (measured.first_wrong) {
    fields["first_wrong"] = describe(*measured.first_wrong, session);
    fields = merged(fields, fields_of(measured.diagnosis));
  }
  if (!measured.iteration_us.empty() && trial.operation->ends_together && plan.groups.empty()) {
    const WaitingTimes waiting = analyse_waiting(measured.iteration_us);
    fields["transfer_us_p50"] = waiting.transfer_us;
    fields["wait_us"] = waiting.wait_us;
    fields["wait_for_straggler_us"] = waiting.wait_for_straggler_us;
    if (waiting.straggler >= 0) fields["straggler_rank"] = waiting.straggler;
  }
  return fields;
}

std::optional<judge::Observation> observation_of(const Json& fields, const Figures& figures,
                                                 const Communicator& communicator,
                                                 const NodeMap& nodes,
                                                 const std::vector<Unit>& units) {
  if (figures.busbw_gbs <= 0 || fields.contains("algorithm") || fields.contains("transports"))
    return std::nullopt;
  const bool cpu = units.front().uuid.empty();
  const bool small =
      fields.at("bytes").get<std::size_t>() < (cpu ? kBandwidthBytesOnCpu : kBandwidthBytes);
  std::vector<int> ranks(units.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  judge::Observation observation =
      observed(fmt::format("collective/{}/{}", fields.at("operation").get<std::string>(),
                           small ? "latency" : "busbw"),
               small ? "us" : "GB/s", communicator, nodes, units, ranks);
  for (const char* key : kRateConditions)
    if (const auto value = fields.find(key); value != fields.end())
      observation.conditions[key] =
          value->is_string() ? value->get<std::string>() : json_text(*value);
  // The end of a sample takes some us, which make a link slow where few iterations share them.
  constexpr int kShared = 5;
  if (const int iterations = fields.at("iterations_per_sample").get<int>(); iterations < kShared)
    observation.conditions["iterations"] = std::to_string(iterations);
  const char* nvls = std::getenv("NCCL_NVLS_ENABLE");
  if (!is_mpi(communicator) && nvls != nullptr && std::string(nvls) == "0")
    observation.conditions["nvls"] = "off";
  for (const double us : figures.samples)
    observation.samples.push_back(small ? us : figures.busbw_gbs * figures.spread.median / us);
  observation.check = !figures.wrong       ? judge::Check::unchecked
                      : *figures.wrong > 0 ? judge::Check::wrong
                                           : judge::Check::verified;
  return observation;
}

std::string name_of_row(const Json& c) {
  return fmt::format("{} {} {} {} {}", c.at("operation").get<std::string>(),
                     c.at("dtype").get<std::string>(), c.at("reduction").get<std::string>(),
                     readable_bytes(c.at("bytes").get<double>()),
                     c.at("in_place").get<bool>() ? "in place" : "out of place");
}

std::string describe(const WrongElement& w, const MpiSession& session) {
  return fmt::format("rank {} on {}, iteration {}, element {}: expected {:#x}, found {:#x}", w.rank,
                     session.hosts()[static_cast<std::size_t>(w.rank)], w.iteration, w.index,
                     w.expected, w.found);
}

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

int group_of(const Plan& plan, int rank) {
  return plan.groups.empty() ? 0 : plan.groups[static_cast<std::size_t>(rank)];
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
  f.algbw_gbs = f.time_us > 0 ? trial.operation->alg_factor(ranks) *
                                    static_cast<double>(trial.bytes()) / f.time_us / 1e3
                              : 0;
  f.busbw_gbs = f.algbw_gbs * trial.operation->bus_factor(ranks);
  if (checked) f.wrong = measured.wrong;
  const std::vector<double>& one_by_one = measured.slowest_iteration_us;
  f.samples = measured.samples_us;
  if (!one_by_one.empty())
    f.samples.assign(one_by_one.begin() + static_cast<std::ptrdiff_t>(measured.skipped),
                     one_by_one.end());
  f.spread = summarize(f.samples);
  return f;
}

std::vector<GroupRate> rates_of_groups(const Trial& trial, const Measurement& measured,
                                       const Plan& plan) {
  std::vector<GroupRate> groups;
  for (std::size_t rank = 0; rank < plan.groups.size(); ++rank) {
    const auto group = static_cast<std::size_t>(plan.groups[rank]);
    groups.resize(std::max(groups.size(), group + 1));
    groups[group].group = plan.groups[rank];
    groups[group].ranks.push_back(static_cast<int>(rank));
  }
  const std::size_t size = size_of(trial.type);
  for (GroupRate& group : groups) {
    const std::size_t ranks = group.ranks.size();
    const Counts counts =
        trial.operation->counts(trial.requested_bytes / size, ranks,
                                std::max<std::size_t>(1, plan.align_bytes / size), size);
    double us = 0;
    for (const int rank : group.ranks)
      us += measured.rank_us[static_cast<std::size_t>(rank)] / static_cast<double>(ranks);
    group.busbw_gbs = static_cast<double>(counts.larger() * size) / us / 1e3 *
                      trial.operation->alg_factor(static_cast<double>(ranks)) *
                      trial.operation->bus_factor(static_cast<double>(ranks));
  }
  return groups;
}

std::string text_of(const std::vector<GroupRate>& groups) {
  std::vector<double> rates;
  const GroupRate* slowest = nullptr;
  for (const GroupRate& group : groups) {
    if (group.ranks.size() < 2) continue;  // exchanges nothing
    rates.push_back(group.busbw_gbs);
    if (!slowest || group.busbw_gbs < slowest->busbw_gbs) slowest = &group;
  }
  if (!slowest) return "each group is a rank";
  return fmt::format("slowest group {}: {:.4g} GB/s, ranks {}; median of {} groups {:.4g} GB/s",
                     slowest->group, slowest->busbw_gbs, fmt::join(slowest->ranks, ", "),
                     rates.size(), median_of(rates));
}

double Tally::mean_busbw_gbs() const {
  return measured > 0 ? busbw_sum_gbs / static_cast<double>(measured) : 0;
}

std::string Tally::judgement() const {
  constexpr double kShare = 0.9;  // nccl-tests fails below this of NCCL_TESTS_MIN_BW
  if (!min_mean_busbw_gbs) return "";
  return mean_busbw_gbs() >= kShare * *min_mean_busbw_gbs ? "OK" : "FAILED";
}

Outcome Tally::outcome() const {
  return wrong_rows > 0 || judgement() == "FAILED" ? Outcome::fail : Outcome::pass;
}

std::string preamble(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                     const Backend& backend, const Json& devices) {
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
  for (const Json& device : devices)
    text += fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}\n",
                        device.at("rank").get<int>(), device.at("group").get<int>(),
                        device.at("pid").get<int>(), device.at("hostname").get<std::string>(),
                        device.at("device").get<int>(), device.at("device_hex").get<std::string>(),
                        device.at("device_info").get<std::string>());
  return text + "#\n";
}

Json devices_of(const Plan& plan, const Backend& backend, const MpiSession& session) {
  const DeviceIdentity device = backend.device->identity();
  const Json mine{{"rank", session.rank()},
                  {"group", group_of(plan, session.rank())},
                  {"pid", getpid()},
                  {"hostname", session.host()},
                  {"device", session.local_rank()},
                  {"device_hex", nccl_tests_device(device.pci_id)},
                  {"device_info", device.model}};
  Json devices = Json::array();
  for (const std::string& one : session.all_gather(json_text(mine)))
    devices.push_back(Json::parse(one));
  return devices;
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

std::string footer(const PerfOptions& options, const Tally& tally,
                   const std::vector<double>& taken_bytes) {
  return fmt::format(
      "# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g} {}\n{}#\n"
      "# Collective test concluded: {}\n#",
      tally.wrong_rows, tally.wrong_rows > 0 ? "FAILED" : "OK", tally.mean_busbw_gbs(),
      tally.judgement(), options.memory > 0 ? memory_line(taken_bytes) : "", options.program);
}

std::string memory_line(const std::vector<double>& taken_bytes) {
  if (taken_bytes.empty()) return "# GPU memory usage     : none, the backend is cpu\n";
  const auto text = [](double amount) {  // as nccl-tests, whose units are binary
    const char* unit = "B";
    for (const char* larger : {"KB", "MB", "GB"})
      if (std::abs(amount) >= 1024) {
        amount /= 1024;
        unit = larger;
      }
    const int digits = std::abs(amount) < 10 ? 2 : std::abs(amount) < 100 ? 1 : 0;
    return fmt::format("{:.{}f} {}", amount, digits, unit);
  };
  return fmt::format(
      "# GPU memory usage     : Initialization {} | User-Allocated {} | Collective {} | Total  "
      "{}\n",
      text(taken_bytes[0]), text(taken_bytes[1]), text(taken_bytes[2]),
      text(std::accumulate(taken_bytes.begin(), taken_bytes.end(), 0.0)));
}

namespace {

constexpr int kVersion = 3;

std::string text_of(bool value) { return value ? "true" : "false"; }

constexpr const char* kOption = "--output-file";

std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(in, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::string unused(const std::string& path) {
  std::string name = path;
  std::error_code ignored;
  for (int i = 0; !is_written_itself(name) && std::filesystem::exists(name, ignored); ++i)
    name = fmt::format("{}.{}", path, i);
  return name;
}

Json config_of(const PerfOptions& options, const Plan& plan) {
  return {{"nthreads", 1},
          {"ngpus", 1},
          {"minimum_bytes", plan.sizes.front()},
          {"maximum_bytes", plan.max_bytes},
          {plan.by_factor ? "step_factor" : "step_bytes", plan.step},
          {"warmup_iters", options.warmup},
          {"iterations", options.iterations},
          {"aggregated_iterations", options.aggregate},
          {"validation", options.check},
          {"graph", options.graph},
          {"blocking_collectives", text_of(options.blocking != 0)},
          {"per_iter_timing", text_of(options.one_by_one != 0)},
          {"per_iter_skip", options.skip},
          {"parallel_init", text_of(false)}};
}

}  // namespace

NcclTestsJson::NcclTestsJson(const std::string& path, const PerfOptions& options, const Plan& plan,
                             const Backend& backend, const Json& devices)
    : cputime_(options.cputime != 0) {
  if (path.empty()) return;
  Json config = config_of(options, plan);
  config["devices"] = devices;
  path_ = unused(path);
  check_writable({kOption, path_});
  std::printf("# Writing JSON output to %s\n", path_.c_str());
  int nccl = 0;
  for (const LibraryVersion& v : library_versions(backend.kind))
    if (v.name == "nccl") nccl = nccl_version_code(v.running);
  // The environment may hold secrets: the record has what bears on a measurement.
  file_ = {{"version", kVersion},     {"start_time", local_now()}, {"args", command_line()},
           {"env", Json::array()},    {"nccl_version", nccl},      {"config", config},
           {"results", Json::array()}};
}

void NcclTestsJson::start_row(const Trial& trial) {
  row_ = {{"operation", trial.operation->name},  // nccl-tests' files are of one
          {"size", trial.bytes()},
          {"count", trial.counts.call},
          {"type", nccl_tests_name_of(trial.type)},
          {"redop", trial.operation->reduces ? name_of(trial.reduction) : "none"},
          {"root", fmt::format("{:6}", trial.root)}};
}

void NcclTestsJson::add_half(bool in_place, const Figures& f, const Measurement& measured) {
  const std::string key = in_place ? "in_place" : "out_of_place";
  row_[key] = {{cputime_ ? "cpu_time" : "time", cputime_ ? f.cputime_us : f.time_us},
               {"alg_bw", f.algbw_gbs},
               {"bus_bw", f.busbw_gbs},
               {"nwrong", f.wrong ? Json(*f.wrong) : Json(nullptr)}};
  if (measured.wrong > 0) row_[key] = merged(row_[key], fields_of(measured.diagnosis));
  if (measured.iteration_us.empty()) return;
  const Summary& s = f.spread;
  row_[key + "_per_iter"] = {{"skipped_iterations", measured.skipped},
                             {"min_us", s.min},
                             {"max_us", s.max},
                             {"avg_us", s.mean},
                             {"p50_us", s.median},
                             {"p95_us", s.p95},
                             {"p99_us", s.p99},
                             {"stdev_us", s.cv * s.mean},
                             {"cv_pct", 100 * s.cv},
                             {"times_us", measured.slowest_iteration_us},
                             {"per_process_max_times_us", measured.iteration_us}};
}

void NcclTestsJson::end_row(int iterations) {
  row_["actual_iterations"] = iterations;
  row_["experiment_name"] = "";
  if (path_.empty()) return;
  file_["results"].push_back(row_);
  if (!is_written_itself(path_)) write();  // a job that ends early leaves what it measured
}

void NcclTestsJson::write() const {
  write_file({kOption, path_}, [&](std::ostream& out) { out << json_text(file_) << "\n"; });
}

void NcclTestsJson::finish(const Tally& tally) {
  if (path_.empty()) return;
  file_["out_of_bounds"] = {{"count", tally.wrong_rows}, {"okay", text_of(tally.wrong_rows == 0)}};
  file_["average_bus_bandwidth"] = {
      {"bandwidth", tally.mean_busbw_gbs()},
      {"okay", tally.judgement().empty() ? "unchecked" : text_of(tally.judgement() == "OK")}};
  file_["errors"] = Json::array();
  file_["end_time"] = local_now();
  write();
}

}  // namespace shakedown::collectives
