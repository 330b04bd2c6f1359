// The PCI bus, the IOMMU, the GPU driver, and networks.
#include "launch/node/health/facts/host_facts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/watch.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kDevices = "/sys/bus/pci/devices";

/// PCI ids of the GPUs of NVIDIA that are on the bus, whether or not a driver has them.
Json read_gpus_on_bus(const FactSource& source) {
  const auto devices = source.names_in(kDevices);
  if (devices.empty()) return {};
  Json gpus = Json::array();
  for (const std::string& device : devices) {
    const std::string at = fmt::format("{}/{}", kDevices, device);
    const std::string kind = source.line_of(at + "/class");  // 0x030000 VGA, 0x030200 3D
    if (source.line_of(at + "/vendor") == "0x10de" && kind.starts_with("0x03"))
      gpus.push_back(device);
  }
  return gpus;
}

/// The version in a line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...".
Json version_in(const std::vector<std::string>& lines, const std::regex& pattern) {
  std::smatch match;
  for (const std::string& line : lines)
    if (std::regex_search(line, match, pattern)) return match[1].str();
  return {};
}
Json read_driver_module(const FactSource& source) {
  return version_in(source.lines_of("/proc/driver/nvidia/version"),
                    std::regex(R"(Kernel Module.*?\s(\d+\.\d+(\.\d+)?)\s)"));
}
/// Whether the module is the one whose source is open; null where it is not loaded.
Json read_open_driver(const FactSource& source) {
  const std::string line = source.line_of("/proc/driver/nvidia/version");
  return line.empty() ? Json() : Json(line.find("Open Kernel Module") != line.npos);
}
/// Of the service's last start.
Json read_fabric_manager(const FactSource& source) {
  auto lines = source.lines_of("/var/log/fabricmanager.log");
  std::ranges::reverse(lines);
  return version_in(lines,
                    std::regex(R"([Ff]abric ?[Mm]anager [Vv]ersion(?: is)?\s*:?\s*(\d+[.\d]*))"));
}

/// Whether a daemon keeps the GPUs initialized while nobody uses them. Null: not known, for the
/// driver may do so without one (nvidia-smi -pm 1).
Json read_persistence_daemon(const FactSource& source) {
  const std::string pid = source.line_of("/run/nvidia-persistenced/nvidia-persistenced.pid");
  const std::string command =
      pid.empty() ? "" : source.line_of(fmt::format("/proc/{}/cmdline", pid));  // words end with 0
  const auto has = [&](const char* word) { return command.find(word) != std::string::npos; };
  return has("nvidia-persistenced") && !has("--no-persistence-mode") ? Json(true) : Json();
}

Json read_modules(const FactSource& source) {
  const auto lines = source.lines_of("/proc/modules");
  if (lines.empty()) return {};
  Json found = Json::array();
  for (const char* module : {"nvidia", "nvidia_peermem", "nv_peer_mem", "nvidia_fs", "gdrdrv"})
    if (std::ranges::any_of(lines, [&](const std::string& line) {
          return line.starts_with(std::string(module) + " ");
        }))
      found.push_back(module);
  return found;
}

/// How the IOMMU serves the GPUs' groups ("identity": it passes through; "DMA", "DMA-FQ": it
/// translates); of all groups where a GPU's is not named. Without one there are none.
Json read_iommu(const FactSource& source) {
  if (source.names_in("/sys").empty()) return {};
  std::set<std::string> types;
  const Json gpus = read_gpus_on_bus(source);
  for (const Json& gpu : gpus)
    types.insert(
        source.line_of(fmt::format("{}/{}/iommu_group/type", kDevices, gpu.get<std::string>())));
  types.erase("");
  if (!types.empty()) return types;
  types = source.each_line_of("/sys/kernel/iommu_groups", "type");
  return types.empty() && !source.names_in("/sys/kernel/iommu_groups").empty() ? Json()
                                                                               : Json(types);
}

/// What a program prints within two seconds; empty where there is none, or it fails.
std::string output_of(const FactSource& source, const char* program, const std::string& arguments) {
  const std::string path = source.root + program;
  if (access(path.c_str(), X_OK) != 0) return "";
  FILE* const pipe =
      popen(fmt::format("/usr/bin/timeout 2 '{}' {} 2>/dev/null", path, arguments).c_str(), "r");
  if (pipe == nullptr) return "";
  std::string output;
  for (std::array<char, 4096> part; const std::size_t n = fread(part.data(), 1, part.size(), pipe);)
    output.append(part.data(), n);
  return pclose(pipe) == 0 ? output : "";
}

/// The daemon by which GPUs of a rack's nodes use one another's memory: whether it runs, the nodes
/// that it is configured for, and what it says of their domain.
Json read_imex(const FactSource& source) {
  const auto processes = source.names_in("/proc");
  if (processes.empty()) return {};
  Json imex = Json::object();
  const bool runs = std::ranges::any_of(processes, [&](const std::string& process) {
    return source.line_of(fmt::format("/proc/{}/comm", process)) == "nvidia-imex";
  });
  // A container has processes of its own, and /proc may hide those of others.
  if (runs || (read_container(source) == "none seen" && !source.line_of("/proc/1/comm").empty()))
    imex["daemon"] = runs;
  std::set<std::string> nodes;
  for (const std::string& line : source.lines_of(kImexNodes)) {
    std::string node;
    if (std::istringstream(line) >> node && !node.starts_with('#')) nodes.insert(node);
  }
  if (!nodes.empty()) imex["nodes"] = nodes;
  if (!runs) return imex;
  const Json said =
      Json::parse(output_of(source, "/usr/bin/nvidia-imex-ctl", "-N -j"), nullptr, false);
  if (!said.is_object() || !said.contains("status")) return imex;
  imex["domain"] = said.at("status").get<std::string>();
  for (const Json& node : said.value("nodes", Json::object()))
    if (const std::string status = node.value("status", ""); status != "READY")
      imex["not_ready"].push_back(node.value("host", "") + " " + status);
  return imex;
}

unsigned word(const std::string& bytes, std::size_t at) {
  unsigned value = 0;
  for (std::size_t i = 0; i < 4 && at + i < bytes.size(); ++i)
    value |= static_cast<unsigned>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}
/// The control register of a bridge's access control services; 0 where it has none.
unsigned acs_control(const std::string& config) {
  constexpr unsigned kAcs = 0x000d;
  for (std::size_t at = 0x100, hops = 0; at >= 0x100 && hops < 64; ++hops) {
    const unsigned header = word(config, at);
    if ((header & 0xffff) == kAcs) return word(config, at + 4) >> 16;
    at = header >> 20;
  }
  return 0;
}
/// The number of bridges that redirect peer-to-peer requests to the host. Only root sees that.
Json read_acs(const FactSource& source) {
  constexpr unsigned kRedirect = 0x0c;  // of requests and completions
  int bridges = 0, redirecting = 0;
  for (const std::string& device : source.names_in(kDevices)) {
    const std::string at = fmt::format("{}/{}", kDevices, device);
    if (!source.line_of(at + "/class").starts_with("0x0604")) continue;
    std::ifstream in(source.root + at + "/config", std::ios::binary);
    const std::string config{std::istreambuf_iterator<char>(in), {}};
    if (config.size() <= 256) return {};  // the extended part is hidden
    ++bridges;
    redirecting += (acs_control(config) & kRedirect) != 0;
  }
  return {{"bridges", bridges}, {"redirecting", redirecting}};
}

// InfiniBand, NICs and TCP ports.

/// The number at the start of a file; null where there is none.
Json number_in(const FactSource& source, const std::string& path) {
  std::istringstream in(source.line_of(path));
  double value = 0;
  return in >> value ? Json(value) : Json();
}
void add(Json& fields, const char* key, const Json& value) {
  if (!value.is_null() && value != "") fields[key] = value;
}

/// "ACTIVE" of "4: ACTIVE".
std::string state_in(const std::string& line) {
  const auto at = line.find(": ");
  return at == std::string::npos ? line : line.substr(at + 2);
}

/// Packets that a port sent again, by whichever of the counters its adapter has: those of RoCE and
/// InfiniBand, and of EFA.
Json read_retransmissions(const FactSource& source, const std::string& port) {
  Json sum;
  for (const char* counter : {"local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err",
                              "roce_adp_retrans", "retrans_pkts"})
    if (const Json count = number_in(source, port + "hw_counters/" + counter); !count.is_null())
      sum = sum.is_null() ? count : Json(sum.get<double>() + count.get<double>());
  return sum;
}

/// The priorities of a RoCE device for which ECN is on, "3"; "none"; null where its driver does not
/// say.
Json read_ecn(const FactSource& source, const std::string& device) {
  Json on;
  for (const std::string& nic : source.names_in(device + "/device/net")) {
    const std::string at = fmt::format("{}/device/net/{}/ecn/roce_np/enable/", device, nic);
    for (const std::string& priority : source.names_in(at)) {
      if (on.is_null()) on = "none";
      if (source.line_of(at + priority) != "1") continue;
      on = on == "none" ? priority : on.get<std::string>() + " " + priority;
    }
  }
  return on;
}

/// Frames of priority flow control, of all priorities: by those received the switch paused the
/// port, by those sent the port the switch.
Json read_pauses(const FactSource& source, const std::string& device) {
  Json sums = Json::object();
  for (const std::string& nic : source.names_in(device + "/device/net")) {
    if (nic.find('\'') != nic.npos) continue;
    std::istringstream in(output_of(source, "/usr/sbin/ethtool", fmt::format("-S '{}'", nic)));
    for (std::string line; std::getline(in, line);) {
      char way = 0;
      int priority = 0;
      double frames = 0;
      if (std::sscanf(line.c_str(), " %cx_prio%d_pause: %lf", &way, &priority, &frames) != 3)
        continue;
      const char* const sum = way == 't' ? "pauses_sent" : "pauses_received";
      sums[sum] = sums.value(sum, 0.0) + frames;
    }
  }
  return sums;
}

/// One object per port. An empty list where the machine has none.
Json read_infiniband(const FactSource& source) {
  const std::string folder = "/sys/class/infiniband/";
  Json ports = Json::array();
  const std::vector<std::string> devices = source.names_in(folder);
  std::map<std::string, std::shared_future<Json>> pauses;  // at once: an adapter may not answer
  for (const std::string& device : devices)
    pauses[device] = start_detached<Json>([source, at = folder + device] {
                       return read_pauses(source, at);
                     }).share();
  for (const std::string& device : devices)
    for (const std::string& port : source.names_in(folder + device + "/ports")) {
      const std::string at = fmt::format("{}{}/ports/{}/", folder, device, port);
      Json fields{{"port", fmt::format("{}:{}", device, port)}};
      add(fields, "board", source.line_of(folder + device + "/board_id"));
      add(fields, "firmware", source.line_of(folder + device + "/fw_ver"));
      add(fields, "state", state_in(source.line_of(at + "state")));
      add(fields, "link_layer", source.line_of(at + "link_layer"));
      add(fields, "rate_gbits", number_in(source, at + "rate"));
      add(fields, "link_downed", number_in(source, at + "counters/link_downed"));
      add(fields, "symbol_errors", number_in(source, at + "counters/symbol_error"));
      add(fields, "retransmissions", read_retransmissions(source, at));
      add(fields, "ecn", read_ecn(source, folder + device));
      fields.update(pauses.at(device).get());
      if (source.line_of(folder + device + "/device/vendor") == kAmazon) fields["efa"] = true;
      ports.push_back(fields);
    }
  return ports;
}

/// The PCI devices on the way to one, from the host bridge on.
std::vector<std::string> way_to(const FactSource& source, const std::string& device) {
  std::error_code error;
  std::vector<std::string> way;
  for (const auto& part : std::filesystem::canonical(source.root + device, error))
    if (part.string().find(':') != std::string::npos) way.push_back(part);
  return way;
}

/// The RDMA devices that are nearest to each GPU, of those below the same root port: on its PCIe
/// switch, or in a ConnectX-8 that is the switch.
Json read_rails(const FactSource& source) {
  const Json gpus = read_gpus_on_bus(source);
  if (gpus.is_null()) return {};
  std::map<std::string, std::vector<std::string>> ways;
  for (const std::string& device : source.names_in("/sys/class/infiniband"))
    ways[device] = way_to(source, "/sys/class/infiniband/" + device + "/device");
  Json rails = Json::object();
  for (const Json& gpu : gpus) {
    const auto own = way_to(source, fmt::format("{}/{}", kDevices, gpu.get<std::string>()));
    std::vector<std::string> nearest;
    std::ptrdiff_t most = 2;  // host bridge and root port
    for (const auto& [device, way] : ways) {
      const auto common = std::ranges::mismatch(own, way).in1 - own.begin();
      if (common > most) nearest.clear();
      most = std::max(most, common);
      if (common == most) nearest.push_back(device);
    }
    rails[gpu.get<std::string>()] = nearest;
  }
  return rails;
}

Json read_nics(const FactSource& source) {
  const std::string folder = "/sys/class/net/";
  const auto names = source.names_in(folder);
  if (names.empty()) return {};
  Json nics = Json::array();
  for (const std::string& name : names) {
    // Hardware has a device, bridges and pairs of containers do not.
    if (source.names_in(folder + name + "/device").empty()) continue;
    Json fields{{"nic", name}};
    add(fields, "state", source.line_of(folder + name + "/operstate"));
    const Json speed = number_in(source, folder + name + "/speed");
    if (!speed.is_null() && speed > 0) fields["speed_mbits"] = speed;
    nics.push_back(fields);
  }
  return nics;
}

/// Ports that are given to outgoing connections, and TCP sockets of this host: an IPv6 socket is
/// counted in a file of its own.
Json read_ports(const FactSource& source) {
  std::istringstream range(source.line_of("/proc/sys/net/ipv4/ip_local_port_range"));
  int first = 0, last = 0;
  if (!(range >> first >> last)) return {};
  Json fields{{"range", last - first + 1}};
  for (const std::string& line : source.lines_of("/proc/net/sockstat")) {
    int in_use = 0, orphan = 0, waiting = 0;
    if (std::sscanf(line.c_str(), "TCP: inuse %d orphan %d tw %d", &in_use, &orphan, &waiting) == 3)
      fields["in_use"] = in_use + waiting;
  }
  for (const std::string& line : source.lines_of("/proc/net/sockstat6")) {
    int in_use = 0;
    if (fields.contains("in_use") && std::sscanf(line.c_str(), "TCP6: inuse %d", &in_use) == 1)
      fields["in_use"] = fields["in_use"].get<int>() + in_use;
  }
  return fields;
}

/// Whether somebody listens on the port that MASTER_PORT names; null where none is set.
Json read_master_port(const FactSource& source) {
  const std::string* port = source.variable("MASTER_PORT");
  if (port == nullptr) return {};
  const std::string ending = fmt::format(":{:04X}", std::atoi(port->c_str()));
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"})
    for (const std::string& line : source.lines_of(table)) {
      std::istringstream in(line);  // "0: 0100007F:1F90 00000000:0000 0A ...": 0A listens
      std::string index, local, remote, state;
      if (in >> index >> local >> remote >> state && local.ends_with(ending) && state == "0A")
        return {{"port", *port}, {"in_use", true}};
    }
  return {{"port", *port}, {"in_use", false}};
}

}  // namespace

std::vector<Fact> device_facts() {
  return {{"gpus_on_bus", false, read_gpus_on_bus},
          {"driver_module", true, read_driver_module},
          {"open_driver", true, read_open_driver},
          {"fabric_manager", true, read_fabric_manager},
          {kPersistenceDaemon, false, read_persistence_daemon},
          {"modules", true, read_modules},
          {"iommu", true, read_iommu},
          {"acs", true, read_acs},
          {"imex", false, read_imex},
          {"rails", false, read_rails},
          {"infiniband", false, read_infiniband},
          {"nics", false, read_nics},
          {"ports", false, read_ports},
          {"master_port", false, read_master_port}};
}

}  // namespace shakedown::node
