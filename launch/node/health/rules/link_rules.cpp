// NVLink, its fabric, and PCIe.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "common/judge/limits.hpp"
#include "common/statistics.hpp"
#include "launch/node/health/rules/rules.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kNoFabric = "not_supported";  // GpuReading::fabric_state
constexpr double kUnderLoad_percent = 50;
constexpr int kDataCentreWidth = 16;

/// What the board's maker says of it; none of an unknown board.
std::optional<judge::Board> board_of(const GpuReading& gpu) {
  return judge::Boards::embedded().find(gpu.pci_device_id, gpu.model);
}

/// A board that C2C joins to a Grace processor.
bool is_on_grace(const std::optional<judge::Board>& board) {
  return board && board->pcie_width == 0 && std::isfinite(board->pcie_gbs);
}

/// Whether its NVSwitches are in the trays of a rack, not in its node, as those of GB200 NVL72.
bool is_of_rack(const GpuReading& gpu) {
  if (!gpu.fabric_cluster.value_or("").empty()) return true;
  const auto board = board_of(gpu);
  return is_on_grace(board) && board->nvlinks.value_or(0) > 0 && gpu.fabric_state != kNoFabric;
}
constexpr const char* kRackFabric = "inspect the rack's switch trays and its cables (NMX-C)";

std::string inactive_links(const GpuReading& gpu) {
  std::vector<int> inactive;
  for (const NvlinkReading& link : gpu.nvlinks)
    if (link.active == false) inactive.push_back(link.link);
  return inactive.empty() ? "" : fmt::format("; inactive: {}", fmt::join(inactive, ", "));
}

Judgement judge_nvlink_count(const GpuReading& gpu, const GpuContext& context) {
  const auto active = active_nvlinks(gpu);
  if (!active) return not_known("the state of the NVLinks is not reported");
  const auto most = majority_of(context.known<std::size_t>([](const GpuReading& peer) {
    return peer.mig_enabled == true ? std::nullopt : active_nvlinks(peer);
  }));
  // Of boards whose links are all wired to NVSwitches or peers. Cards with bridges (H100 NVL, A100
  // PCIe) have those of their bridges: there the majority decides. Others with an NVSwitch have all
  // that the driver lists.
  const auto board = board_of(gpu);
  std::optional<std::size_t> expected;
  if (board && board->nvlinks) expected = static_cast<std::size_t>(*board->nvlinks);
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
  const char* start = is_of_rack(gpu)
                          ? kRackFabric
                          : "start nvidia-fabricmanager; inspect NVSwitches and their boards";
  const auto class_ = is_of_rack(gpu) ? Class::infrastructure : Class::config;
  if (most == active)  // all alike: not this part
    return failure(class_, cause + ", as on most peers", start);
  const bool alike = std::ranges::all_of(context.node, [&](const GpuReading* gpu_of_node) {
    return active_nvlinks(*gpu_of_node) == active;
  });
  if (alike && *active == 0) return failure(class_, cause + ", none on any GPU of the node", start);
  if (alike && context.node.size() > 1)
    return failure(Class::infrastructure, cause + ", as on every GPU of the node", start);
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
  const bool of_rack = is_of_rack(gpu);
  if (state != "completed")
    return failure(of_rack ? Class::infrastructure : Class::software,
                   fmt::format("registration with the NVLink fabric: {}", state),
                   of_rack ? kRackFabric
                           : "start nvidia-fabricmanager of the driver's version, then restart "
                             "the job");
  if (!gpu.fabric_status)
    return not_known("the result of the fabric's registration is not reported");
  if (*gpu.fabric_status != "success")
    return failure(
        Class::infrastructure,
        fmt::format("registration with the NVLink fabric ended with: {}", *gpu.fabric_status),
        of_rack ? kRackFabric : "restart nvidia-fabricmanager; see /var/log/fabricmanager.log");
  if (gpu.fabric_health && *gpu.fabric_health != "healthy")
    return failure(Class::infrastructure,
                   fmt::format("the NVLink fabric is {}", *gpu.fabric_health),
                   of_rack ? kRackFabric
                           : "inspect NVSwitches and their links; see /var/log/fabricmanager.log");
  return passed("registered with the NVLink fabric");
}

/// GPUs of another clique are reached by the network, not by NVLink. Nodes are compared elsewhere.
Judgement judge_clique(const GpuReading& gpu, const GpuContext& context) {
  const char* none = "no NVLink fabric between nodes";
  if (!gpu.fabric_state) return not_known("the NVLink fabric's state is not reported");
  if (gpu.fabric_state == kNoFabric) return passed(none);
  if (!gpu.fabric_cluster) return not_known("the GPU's NVLink clique is not reported");
  std::vector<std::string> known;
  for (const GpuReading* one : context.node)
    if (one->fabric_cluster) known.push_back(text_of_clique(*one));
  const std::string mine = text_of_clique(gpu), most = majority_of(known).value_or(mine);
  if (mine != most)
    return failure(Class::infrastructure,
                   fmt::format("NVLink {}, most GPUs of the node {}", mine, most),
                   "inspect the partitions of the rack's switch trays (NMX-C); reset GPU");
  return passed(gpu.fabric_cluster->empty() ? none : "NVLink " + mine);
}

/// NVLink between a GPU and its Grace processor.
Judgement judge_c2c(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.model.empty() && !is_on_grace(board_of(gpu)) && gpu.c2c_count.value_or(0) == 0)
    return passed("no C2C link");
  if (!gpu.c2c_count || !gpu.c2c_active) return not_known("C2C links are not reported");
  const auto expected =
      std::max(*gpu.c2c_count, context.majority(&GpuReading::c2c_count).value_or(0));
  if (*gpu.c2c_active < expected || expected == 0)
    return failure(Class::hardware,
                   fmt::format("{} of {} C2C links active", *gpu.c2c_active, expected),
                   "reboot; RMA if they stay down");
  if (!gpu.c2c_errors) return not_known("errors of C2C links are not reported");
  return FewErrors{[](const GpuReading& one) { return one.c2c_errors; }, "C2C errors",
                   "{0:.0f} {1}, median of the peers {3:.0f}",
                   "reset GPU; RMA if they grow"}(gpu, context);
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
  const auto board = board_of(gpu);  // of no width: it has no slot (Grace), and any is right
  if (width < (board ? board->pcie_width : kDataCentreWidth) && !peers_width)
    return warning(Class::config, fmt::format("PCIe of GPU and slot {}", most), kReseat);
  return passed(fmt::format("PCIe of GPU and slot {}", most));
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

std::string text_of_clique(const GpuReading& gpu) {
  if (!gpu.fabric_cluster || gpu.fabric_cluster->empty()) return "without a clique";
  return fmt::format("clique {} of {}", gpu.fabric_clique.value_or(0),
                     gpu.fabric_cluster->substr(0, 8));
}

std::vector<GpuRule> link_rules() {
  std::vector<GpuRule> all{
      {"nvlink-count", "active NVLinks, by board, else by the majority", judge_nvlink_count},
      {"nvlink-speed", "NVLinks slower than most of the model's", judge_nvlink_speed},
      {"nvlink-errors", "CRC errors, replays and recoveries", judge_nvlink_errors},
      {"nvlink-fabric", "registration with the NVSwitch fabric", judge_fabric},
      {"nvlink-clique", "GPUs of a node in one clique of a rack's fabric", judge_clique}};
  for (GpuRule& rule : all)  // MIG's parts have no peers, and some drivers take the links down
    rule.judge = [judge = rule.judge](const GpuReading& gpu, const GpuContext& context) {
      return gpu.mig_enabled == true ? not_applicable("MIG is on: no part of the GPU uses NVLink")
                                     : judge(gpu, context);
    };
  const std::vector<GpuRule> others{
      {"c2c", "active C2C links to a Grace processor, and their errors", judge_c2c},
      {kPcieLink, "most that GPU and slot can do; the present link under load", judge_pcie},
      {"pcie-replays", "PCIe replays, next to those of the peers",
       FewErrors{[](const GpuReading& gpu) { return gpu.pcie_replays; }, "PCIe replays",
                 "{0:.0f} {1}, median of the peers {3:.0f}", "reseat GPU or riser; run again"}}};
  std::ranges::copy(others, std::back_inserter(all));
  return all;
}

}  // namespace shakedown::node
