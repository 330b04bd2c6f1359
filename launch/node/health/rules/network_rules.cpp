// IOMMU and PCIe access control, InfiniBand, NICs and ports.
#include <fmt/format.h>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {
namespace {

constexpr double kManySymbolErrors = 100;

/// Whether a list, of GPUs or of ports, has anything; what is not known may have.
bool may_have(const Json& facts, const char* list) {
  const Json& found = fact_of(facts, list);
  return found.is_null() || !found.empty();
}
bool may_have_gpus(const Json& facts) { return may_have(facts, "gpus_on_bus"); }

std::vector<Judgement> judge_acs(const Json& facts) {
  if (!may_have_gpus(facts)) return {not_applicable("no GPU on the PCI bus")};
  const Json& acs = fact_of(facts, "acs");
  if (acs.is_null()) return {not_known("only root can read it", "run as root")};
  const int redirecting = acs.at("redirecting");
  if (redirecting == 0) return {passed("PCIe bridges do not redirect peer-to-peer requests")};
  return {warning(
      Class::config,
      fmt::format("{} PCIe bridges send peer-to-peer requests through the host (ACS)", redirecting),
      "reconfigure: turn ACS off in the BIOS, or with setpci on each bridge")};
}

std::vector<Judgement> judge_iommu(const Json& facts) {
  if (!may_have_gpus(facts)) return {not_applicable("no GPU on the PCI bus")};
  const Json& types = fact_of(facts, "iommu");
  if (types.is_null()) return {not_known("how the IOMMU translates for the GPUs is not readable")};
  std::vector<std::string> translating;  // "DMA", "DMA-FQ"
  for (const Json& type : types)
    if (type != "identity") translating.push_back(type);
  if (translating.empty()) return {passed("no IOMMU translates for GPUs")};
  return {warning(Class::config,
                  fmt::format("an IOMMU translates for GPUs ({}): copies between them may be slow",
                              fmt::join(translating, ", ")),
                  "reconfigure: boot with iommu=pt, on ARM with iommu.passthrough=1")};
}

/// The open driver passes GPU memory as dma-buf since Linux 5.12; NCCL uses that before the module.
bool has_dma_buf(const Json& facts) {
  const Json& kernel = fact_of(facts, "kernel");
  int major = 0, minor = 0;
  if (kernel.is_string()) std::sscanf(kernel.get<std::string>().c_str(), "%d.%d", &major, &minor);
  const Json& variables = fact_of(facts, "nccl_variables");
  const bool off = variables.is_object() && variables.value("NCCL_DMABUF_ENABLE", "") == "0";
  return fact_of(facts, "open_driver") == true && !off &&
         std::pair(major, minor) >= std::pair(5, 12);
}

std::vector<Judgement> judge_peermem(const Json& facts) {
  if (!may_have_gpus(facts) || !may_have(facts, "infiniband"))
    return {not_applicable("no GPU with InfiniBand")};
  const Json& modules = fact_of(facts, "modules");
  if (modules.is_null()) return {not_known("the kernel's modules are not readable")};
  for (const Json& module : modules)
    if (module == "nvidia_peermem" || module == "nv_peer_mem")
      return {passed("GPUDirect RDMA: " + module.get<std::string>())};
  if (has_dma_buf(facts)) return {passed("GPUDirect RDMA: dma-buf of the open driver")};
  return {warning(Class::config, "nvidia_peermem is not loaded: GPUDirect RDMA needs it or dma-buf",
                  "reconfigure: modprobe nvidia_peermem")};
}

std::vector<Judgement> judge_port(const Json& port) {
  const auto name = port.at("port").get<std::string>();
  std::vector<Judgement> all;
  if (!port.contains("state"))
    all.push_back(not_known(name + ": state is not reported"));
  else if (port.at("state") != "ACTIVE")
    all.push_back(warning(
        Class::infrastructure, fmt::format("{} is {}", name, port.at("state").get<std::string>()),
        "inspect link " + name + "; nothing to do if the port is unused by design"));
  for (const char* counter : {"link_downed", "symbol_errors"}) {
    if (!port.contains(counter)) {
      all.push_back(not_known(fmt::format("{}: {} is not reported", name, counter)));
      continue;
    }
    const double count = port.at(counter);
    if (count > (std::string(counter) == "symbol_errors" ? kManySymbolErrors : 0))
      all.push_back(
          warning(Class::infrastructure,
                  fmt::format("{}: {} {:.0f} since its counters were reset", name, counter, count),
                  "inspect link " + name + ": cable and switch port"));
  }
  return all;
}

/// Ports of which one may be compared with another: of one board, or of one firmware where the
/// board is not known. A port for storage or management is on another.
std::string kind_of(const Json& port) {
  return port.value("link_layer", "") + " " + port.value("board", port.value("firmware", ""));
}

std::vector<Judgement> judge_infiniband(const Json& facts) {
  const Json& ports = fact_of(facts, "infiniband");
  if (ports.is_null()) return {not_known("InfiniBand devices are not readable")};
  if (ports.empty()) return {not_applicable("no InfiniBand")};
  std::vector<Judgement> all;
  std::map<std::string, double> best;  // Gbit/s, of the ports of a kind
  for (const Json& port : ports) {
    double& rate = best[kind_of(port)];
    rate = std::max(rate, port.value("rate_gbits", 0.0));
  }
  for (const Json& port : ports) {
    for (Judgement& judgement : judge_port(port)) all.push_back(std::move(judgement));
    const double rate = port.value("rate_gbits", 0.0), fastest = best.at(kind_of(port));
    const auto name = port.at("port").get<std::string>();
    if (port.value("state", "") == "ACTIVE" && rate < fastest)
      all.push_back(warning(Class::infrastructure,
                            fmt::format("{} at {:.0f} Gbit/s, the fastest of its kind at {:.0f}",
                                        name, rate, fastest),
                            "inspect link " + name + ": cable and switch port"));
  }
  if (all.empty()) all.push_back(passed(fmt::format("{} ports active", ports.size())));
  return all;
}

std::vector<Judgement> judge_nics(const Json& facts) {
  const Json& nics = fact_of(facts, "nics");
  if (nics.is_null()) return {not_known("NICs are not readable")};
  std::vector<std::string> up;
  bool all_known = true;
  for (const Json& nic : nics) {
    if (nic.value("state", "") != "up") continue;
    const std::string name = nic.at("nic");
    const bool known = nic.contains("speed_mbits");
    all_known = all_known && known;
    up.push_back(
        known ? fmt::format("{} {:.0f} Gbit/s", name, nic.at("speed_mbits").get<double>() / 1000)
              : name + " at unknown speed");
  }
  if (up.empty()) return {not_known("no NIC with hardware is up here")};
  const std::string text = fmt::format("{}", fmt::join(up, ", "));
  return {all_known ? passed(text) : not_known(text)};
}

std::vector<Judgement> judge_ports(const Json& facts) {
  const Json& ports = fact_of(facts, "ports");
  if (ports.is_null() || !ports.contains("in_use"))
    return {not_known("TCP ports are not readable")};
  const int in_use = ports.at("in_use"), range = ports.at("range");
  const Json& master = fact_of(facts, "master_port");
  if (!master.is_null() && master.at("in_use") == true)
    return {warning(Class::environment,
                    fmt::format("MASTER_PORT {} is in use", master.at("port").get<std::string>()),
                    "end the earlier run, or choose another port")};
  if (in_use > 0.8 * range)
    return {warning(Class::environment, fmt::format("{} of {} TCP ports in use", in_use, range),
                    "end what holds them; widen net.ipv4.ip_local_port_range")};
  return {passed("TCP ports are free")};
}

}  // namespace

std::vector<HostRule> network_rules() {
  return {{"acs", "PCIe access control between peers", judge_acs},
          {"iommu", "IOMMU between GPUs", judge_iommu},
          {"peermem", "module for GPUDirect RDMA", judge_peermem},
          {"infiniband", "ports: state, rate, link-downed and symbol errors", judge_infiniband},
          {"nics", "NICs that are up", judge_nics},
          {"tcp-ports", "TCP ports that are free", judge_ports}};
}

}  // namespace shakedown::node
