// Libraries, variables, and the fabric manager.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/nccl_variables.hpp"

namespace shakedown::node {
namespace {

std::string major_of(const std::string& version) { return version.substr(0, version.find('.')); }

std::vector<Judgement> judge_libraries(const Json& facts) {
  const Json& libraries = fact_of(facts, "libraries");
  if (libraries.is_null()) return {not_known("versions of the libraries are not known")};
  std::vector<Judgement> all;
  std::vector<std::string> same;
  for (const auto& [name, version] : libraries.items()) {
    const auto built = libraries.find(name + "_built");
    if (built == libraries.end()) continue;
    const std::string now = version, then = *built;
    if (now.empty())
      all.push_back(not_known(fmt::format("{}: the version loaded is not known", name)));
    else if (major_of(now) != major_of(then))
      all.push_back(failure(Class::software,
                            fmt::format("{} {} is loaded, built against {}", name, now, then),
                            fmt::format("load {} {}, or build again", name, then)));
    else
      same.push_back(now == then ? fmt::format("{} {}", name, now)
                                 : fmt::format("{} {} (built against {})", name, now, then));
  }
  if (!same.empty()) all.push_back(passed(fmt::format("{}", fmt::join(same, ", "))));
  return all;
}

std::vector<Judgement> judge_blocking(const Json& facts) {
  const Json& variables = fact_of(facts, "cuda_variables");
  if (variables.is_null()) return {not_known("the environment is not readable")};
  if (variables.value("CUDA_LAUNCH_BLOCKING", "0") == "0")
    return {passed("CUDA_LAUNCH_BLOCKING is not set")};
  return {warning(Class::config, "CUDA_LAUNCH_BLOCKING is set: every launch waits for the GPU",
                  "unset CUDA_LAUNCH_BLOCKING")};
}

std::vector<Judgement> judge_nccl(const Json& facts) {
  const Json& variables = fact_of(facts, "nccl_variables");
  if (variables.is_null()) return {not_known("the environment is not readable")};
  const Json& wrong = fact_of(facts, "nccl_wrong");
  auto all = explain_nccl(variables.get<NcclVariables>(),
                          wrong.is_null() ? NcclVariables{} : wrong.get<NcclVariables>());
  if (all.empty()) all.push_back(passed("no NCCL variable is set"));
  return all;
}

std::vector<Judgement> judge_fabric_manager(const Json& facts) {
  const Json& manager = fact_of(facts, "fabric_manager");
  const Json& driver = fact_of(facts, "driver_module");
  if (const Json& gpus = fact_of(facts, "gpus_on_bus"); !gpus.is_null() && gpus.empty())
    return {not_applicable("no GPU on the PCI bus")};
  if (driver.is_null())
    return {not_known("the version of the GPU driver's module is not readable")};
  if (manager.is_null()) return {not_known("the fabric manager's version is not readable here")};
  if (manager == driver) return {passed("fabric manager of the driver's version")};
  return {failure(Class::software,
                  fmt::format("fabric manager {}, driver {}: they must be the same",
                              manager.get<std::string>(), driver.get<std::string>()),
                  "install nvidia-fabricmanager of the driver's version and restart it")};
}

}  // namespace

std::vector<HostRule> software_rules() {
  return {{"libraries", "libraries loaded, and built against", judge_libraries},
          {"launch-blocking", "CUDA_LAUNCH_BLOCKING", judge_blocking},
          {"nccl-variables", "NCCL variables that are set, and what they do", judge_nccl},
          {"fabric-manager", "the fabric manager's version, next to the driver's",
           judge_fabric_manager}};
}

}  // namespace shakedown::node
