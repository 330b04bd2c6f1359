#include "collectives/perf/nccl_tests_json.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "collectives/perf/type_names.hpp"
#include "common/error.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"

namespace shakedown::collectives {
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
          {"per_iter_skip", 0},
          {"parallel_init", text_of(false)}};
}

Json devices_of(const Backend& backend, const MpiSession& session) {
  const DeviceIdentity device = backend.device->identity();
  const auto pids = session.all_gather(static_cast<double>(getpid()));
  const auto local_ranks = session.all_gather(static_cast<double>(session.local_rank()));
  const auto pci = session.all_gather(device.pci_id);
  const auto models = session.all_gather(device.model);
  Json devices = Json::array();
  for (std::size_t r = 0; r < pids.size(); ++r)
    devices.push_back({{"rank", r},
                       {"group", 0},
                       {"pid", static_cast<int>(pids[r])},
                       {"hostname", session.hosts()[r]},
                       {"device", static_cast<int>(local_ranks[r])},
                       {"device_hex", nccl_tests_device(pci[r])},
                       {"device_info", models[r]}});
  return devices;
}

}  // namespace

NcclTestsJson::NcclTestsJson(const std::string& path, const PerfOptions& options, const Plan& plan,
                             const Backend& backend, const MpiSession& session)
    : cputime_(options.cputime != 0) {
  Json config = config_of(options, plan);
  config["devices"] = devices_of(backend, session);
  if (path.empty()) return;
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
  if (measured.iteration_us.empty()) return;
  const Summary& s = f.spread;
  row_[key + "_per_iter"] = {{"skipped_iterations", 0},
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

void NcclTestsJson::finish(const Totals& totals) {
  if (path_.empty()) return;
  file_["out_of_bounds"] = {{"count", totals.wrong_rows},
                            {"okay", text_of(totals.wrong_rows == 0)}};
  file_["average_bus_bandwidth"] = {
      {"bandwidth", totals.mean_busbw_gbs},
      {"okay", totals.judgement.empty() ? "unchecked" : text_of(totals.judgement == "OK")}};
  file_["errors"] = Json::array();
  file_["end_time"] = local_now();
  write();
}

}  // namespace shakedown::collectives
