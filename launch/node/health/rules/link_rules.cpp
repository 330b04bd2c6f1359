// NVLink, its fabric, and PCIe.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/judge/limits.hpp"
#include "common/statistics.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"
#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kNoFabric = "not_supported";  // GpuReading::fabric_state
constexpr double kManyErrors = 1000, kManyTimesPeers = 100;
constexpr double kUnderLoad_percent = 50;
constexpr int kDataCentreWidth = 16;

/// What the board's maker says of it; none of an unknown board.
std::optional<judge::Board> board_of(const GpuReading& gpu) {
  return judge::Boards::embedded().find(gpu.pci_device_id, gpu.model);
}

/// Of boards whose links are all wired to NVSwitches or peers. Cards with bridges (H100 NVL, A100
/// PCIe) have those of their bridges: there the majority decides. Others with an NVSwitch have all
/// that the driver lists.
std::optional<std::size_t> expected_links(const GpuReading& gpu) {
  const auto board = board_of(gpu);
  if (!board || !board->nvlinks) return std::nullopt;
  return static_cast<std::size_t>(*board->nvlinks);
}

/// 0: the board has no slot (Grace), and any is right.
int expected_width(const GpuReading& gpu) {
  const auto board = board_of(gpu);
  return board ? board->pcie_width : kDataCentreWidth;
}

/// None where the links, or the state of one, are not known.
std::optional<std::size_t> active_links(const GpuReading& gpu) {
  if (gpu.nvlinks.empty() && gpu.nvlink_count != 0) return std::nullopt;
  std::size_t active = 0;
  for (const NvlinkReading& link : gpu.nvlinks) {
    if (!link.active) return std::nullopt;
    active += *link.active;
  }
  return active;
}

std::string inactive_links(const GpuReading& gpu) {
  std::vector<int> inactive;
  for (const NvlinkReading& link : gpu.nvlinks)
    if (link.active == false) inactive.push_back(link.link);
  return inactive.empty() ? "" : fmt::format("; inactive: {}", fmt::join(inactive, ", "));
}

Judgement judge_nvlink_count(const GpuReading& gpu, const GpuContext& context) {
  const auto active = active_links(gpu);
  if (!active) return not_known("the state of the NVLinks is not reported");
  const auto most = majority_of(context.known<std::size_t>(active_links));
  auto expected = expected_links(gpu);
  // On a board with NVSwitches every link that the driver lists leads to one. All GPUs may lack the
  // same ones: their majority says nothing where the fabric manager or a switch is the cause.
  const bool has_inactive = *active < gpu.nvlinks.size();
  if (!expected && has_inactive && !gpu.fabric_state)
    return undecided(
        Class::infrastructure,
        fmt::format("{} of {} NVLinks active{}: the fabric's state is not reported, so how many "
                    "should be is not known",
                    *active, gpu.nvlinks.size(), inactive_links(gpu)),
        "inspect links of this GPU (nvidia-smi nvlink -s); update the driver");
  if (!expected)
    expected = has_inactive && *gpu.fabric_state != kNoFabric ? gpu.nvlinks.size() : most;
  if (!expected) {
    if (*active == gpu.nvlinks.size())
      return passed(*active == 0 ? "no NVLink" : fmt::format("all {} NVLinks active", *active));
    return not_known(
        fmt::format("{} of {} NVLinks active{}: how many this model should have is not "
                    "known",
                    *active, gpu.nvlinks.size(), inactive_links(gpu)),
        "run again with at least 3 GPUs of this model, to compare");
  }
  const std::string cause =
      fmt::format("{} NVLinks active, {} expected{}", *active, *expected, inactive_links(gpu));
  if (*active >= *expected) return passed(fmt::format("{} NVLinks active", *active));
  const char* start = "start nvidia-fabricmanager; inspect NVSwitches and their boards";
  if (most == active)  // all alike: not this part
    return failure(Class::config, cause + ", as on most peers", start);
  if (std::ranges::none_of(context.node, [](const GpuReading* gpu_of_node) {
        return active_links(*gpu_of_node).value_or(0) > 0;
      }))
    return failure(Class::config, cause + ", none on any GPU of the node", start);
  return failure(Class::hardware, cause,
                 "inspect links of this GPU; reset GPU, RMA if they stay down");
}

/// Links that trained at a lower speed than most of the model's.
Judgement judge_nvlink_speed(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.nvlink_count == 0) return passed("no NVLink");
  if (gpu.nvlinks.empty()) return not_known("NVLinks are not reported");
  std::vector<int> speeds;
  for (const GpuReading* peer : context.peers)
    for (const NvlinkReading& link : peer->nvlinks)
      if (link.active == true && link.speed_mbs) speeds.push_back(*link.speed_mbs);
  const auto most = majority_of(speeds);
  std::vector<std::string> slow;
  int unread = 0;
  for (const NvlinkReading& link : gpu.nvlinks) {
    if (link.active != true) continue;
    unread += !link.speed_mbs;
    if (most && link.speed_mbs && *link.speed_mbs < *most)
      slow.push_back(fmt::format("{} at {} MB/s", link.link, *link.speed_mbs));
  }
  if (!slow.empty())
    return failure(Class::hardware,
                   fmt::format("NVLink {}, most at {} MB/s", fmt::join(slow, ", "), *most),
                   "inspect the link; reset GPU");
  if (unread > 0) return not_known("the speed of an NVLink is not reported");
  if (!most && !speeds.empty())
    return not_known("NVLinks run at several speeds, no speed is that of most");
  return passed(most ? fmt::format("NVLinks at {} MB/s", *most) : "no active NVLink");
}

using Counter = Known<std::uint64_t> NvlinkReading::*;
constexpr std::array<std::pair<const char*, Counter>, 3> kCounters{
    {{"CRC errors", &NvlinkReading::crc_errors},
     {"replays", &NvlinkReading::replay_errors},
     {"recoveries", &NvlinkReading::recovery_errors}}};

Judgement judge_nvlink_errors(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.nvlink_count == 0) return passed("no NVLink");
  if (gpu.nvlinks.empty()) return not_known("NVLinks are not reported");
  bool all_known = true;
  for (const auto& [what, counter] : kCounters) {
    std::vector<double> all;
    for (const GpuReading* peer : context.peers)
      for (const NvlinkReading& link : peer->nvlinks)
        if (link.*counter) all.push_back(static_cast<double>(*(link.*counter)));
    const double usual = all.empty() ? 0 : median_of(all);
    for (const NvlinkReading& link : gpu.nvlinks) {
      if (!(link.*counter)) {
        all_known = false;
        continue;
      }
      const auto errors = static_cast<double>(*(link.*counter));
      if (errors > kManyErrors && errors > kManyTimesPeers * usual)
        return warning(Class::hardware,
                       fmt::format("NVLink {}: {:.0f} {}, median of all links {:.0f}", link.link,
                                   errors, what, usual),
                       "inspect the link; reset GPU");
    }
  }
  if (!all_known) return not_known("an NVLink's error counters are not reported");
  return passed("NVLink errors are few");
}

Judgement judge_fabric(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.fabric_state) return not_known("the NVLink fabric's state is not reported");
  const std::string& state = *gpu.fabric_state;
  if (state == kNoFabric) return passed("no NVSwitch fabric");
  if (state != "completed")
    return failure(Class::software, fmt::format("registration with the NVLink fabric: {}", state),
                   "start nvidia-fabricmanager of the driver's version, then restart the job");
  if (!gpu.fabric_status)
    return not_known("the result of the fabric's registration is not reported");
  if (*gpu.fabric_status != "success")
    return failure(
        Class::infrastructure,
        fmt::format("registration with the NVLink fabric ended with: {}", *gpu.fabric_status),
        "restart nvidia-fabricmanager; see /var/log/fabricmanager.log");
  if (gpu.fabric_health && *gpu.fabric_health != "healthy")
    return failure(Class::infrastructure,
                   fmt::format("the NVLink fabric is {}", *gpu.fabric_health),
                   "inspect NVSwitches and their links; see /var/log/fabricmanager.log");
  return passed("registered with the NVLink fabric");
}

/// "Gen5 x16".
std::string text_of_pcie(int generation, int width) {
  return fmt::format("Gen{} x{}", generation, width);
}

constexpr const char* kNoPcie = "the PCIe link of GPU and slot is not reported";
constexpr const char* kReseat = "reseat GPU or riser; reconfigure the slot in the BIOS";

/// The link of an idle GPU is slower on purpose, so only the most that GPU and slot can do is
/// judged, and the present one only under load.
Judgement judge_pcie(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.max_pcie_generation || !gpu.max_pcie_width) return not_known(kNoPcie);
  const int generation = *gpu.max_pcie_generation, width = *gpu.max_pcie_width;
  const std::string most = text_of_pcie(generation, width);
  const auto peers_generation = context.majority(&GpuReading::max_pcie_generation);
  const auto peers_width = context.majority(&GpuReading::max_pcie_width);
  if (generation < peers_generation.value_or(0) || width < peers_width.value_or(0))
    return failure(Class::hardware,
                   fmt::format("PCIe of GPU and slot {}, of most peers {}", most,
                               text_of_pcie(peers_generation.value_or(generation),
                                            peers_width.value_or(width))),
                   kReseat);
  if (context.under_load || gpu.utilisation_percent > kUnderLoad_percent)
    return judge_pcie_under_load(gpu);
  if (width < expected_width(gpu) && !peers_width)
    return warning(Class::config, fmt::format("PCIe of GPU and slot {}", most), kReseat);
  return passed(fmt::format("PCIe of GPU and slot {}", most));
}

Judgement judge_replays(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.pcie_replays) return not_known("PCIe replays are not reported");
  const auto peers = context.known<double>([](const GpuReading& peer) -> Known<double> {
    if (!peer.pcie_replays) return std::nullopt;
    return static_cast<double>(*peer.pcie_replays);
  });
  const auto mine = static_cast<double>(*gpu.pcie_replays);
  const double usual = peers.size() < 3 ? 0 : median_of(peers);
  if (mine > kManyErrors && mine > kManyTimesPeers * usual)
    return warning(Class::hardware,
                   fmt::format("{:.0f} PCIe replays, median of the peers {:.0f}", mine, usual),
                   "reseat GPU or riser; run again");
  return passed("PCIe replays are few");
}

}  // namespace

Judgement judge_pcie_under_load(const GpuReading& gpu) {
  if (!gpu.max_pcie_generation || !gpu.max_pcie_width) return not_known(kNoPcie);
  if (!gpu.pcie_generation || !gpu.pcie_width)
    return not_known("the PCIe link under load is not reported");
  const std::string most = text_of_pcie(*gpu.max_pcie_generation, *gpu.max_pcie_width);
  if (gpu.pcie_generation < gpu.max_pcie_generation || gpu.pcie_width < gpu.max_pcie_width)
    return failure(Class::hardware,
                   fmt::format("PCIe {} under load, GPU and slot can do {}",
                               text_of_pcie(*gpu.pcie_generation, *gpu.pcie_width), most),
                   kReseat);
  return passed(fmt::format("PCIe {} under load", most));
}

std::vector<GpuRule> link_rules() {
  return {{"nvlink-count", "active NVLinks, by board, else by the majority", judge_nvlink_count},
          {"nvlink-speed", "NVLinks slower than most of the model's", judge_nvlink_speed},
          {"nvlink-errors", "CRC errors, replays and recoveries", judge_nvlink_errors},
          {"nvlink-fabric", "registration with the NVSwitch fabric", judge_fabric},
          {kPcieLink, "most that GPU and slot can do; the present link under load", judge_pcie},
          {"pcie-replays", "PCIe replays, next to those of the peers", judge_replays}};
}

// IOMMU and PCIe access control, InfiniBand, NICs and ports.

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
