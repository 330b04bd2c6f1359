// The PCI bus, the IOMMU, and the GPU driver's modules and services.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "launch/node/health/facts/host_facts.hpp"

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
  const auto groups = source.names_in("/sys/kernel/iommu_groups");
  for (const std::string& group : groups)
    types.insert(source.line_of("/sys/kernel/iommu_groups/" + group + "/type"));
  types.erase("");
  return types.empty() && !groups.empty() ? Json() : Json(types);
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

}  // namespace

std::vector<Fact> bus_facts() {
  return {{"gpus_on_bus", false, read_gpus_on_bus},
          {"driver_module", true, read_driver_module},
          {"open_driver", true, read_open_driver},
          {"fabric_manager", true, read_fabric_manager},
          {kPersistenceDaemon, false, read_persistence_daemon},
          {"modules", true, read_modules},
          {"iommu", true, read_iommu},
          {"acs", true, read_acs}};
}

// InfiniBand, NICs and TCP ports.

namespace {

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

/// One object per port. An empty list where the machine has none.
Json read_infiniband(const FactSource& source) {
  const std::string folder = "/sys/class/infiniband/";
  Json ports = Json::array();
  for (const std::string& device : source.names_in(folder))
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
      ports.push_back(fields);
    }
  return ports;
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

std::vector<Fact> network_facts() {
  return {{"infiniband", false, read_infiniband},
          {"nics", false, read_nics},
          {"ports", false, read_ports},
          {"master_port", false, read_master_port}};
}

}  // namespace shakedown::node
