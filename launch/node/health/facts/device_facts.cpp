// The PCI bus, the IOMMU, the GPU driver, networks, and what NCCL's variables name of them.
#include "launch/node/health/facts/host_facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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

// NCCL's variables, and what they name that this host does not have.

/// Of the environment, and of the files from which NCCL reads what the environment does not set.
Json read_nccl_variables(const FactSource& source) {
  Json found = Json::object();
  const std::string* home = source.variable("HOME");
  const std::string* file = source.variable("NCCL_CONF_FILE");
  const std::string own = file ? *file : home ? *home + "/.nccl.conf" : "";
  for (const std::string& path : {std::string("/etc/nccl.conf"), own})
    for (const std::string& line : source.lines_of(path))
      if (const auto equals = line.find('='); line.starts_with("NCCL_") && equals != line.npos)
        found[line.substr(0, equals)] = line.substr(equals + 1);
  for (const auto& [name, value] : source.environment)
    if (name.starts_with("NCCL_")) found[name] = value;
  return found;
}

using Names = std::vector<std::string>;

Names split(const std::string& list, char separator) {
  Names parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

/// "mlx5_0:1" of "mlx5_0:1": a port is of a device where a variable names the device alone.
bool is_named(const std::string& entry, const std::string& name, bool exactly) {
  const bool same = entry == name || name.substr(0, name.find(':')) == entry;
  return exactly ? same : same || name.starts_with(entry);
}

/// What is wrong with "ib0,ib1", "=eth0" (exactly these) or "^docker" (all others), which name
/// devices by how they begin; none where all is well. Of NICs it is enough that one is there: a
/// list serves several kinds of nodes.
std::optional<std::string> wrong_list(std::string list, const Names& present, const char* what,
                                      bool one_is_enough) {
  const bool excludes = list.starts_with('^');
  if (excludes) list.erase(0, 1);
  const bool exactly = list.starts_with('=');
  if (exactly) list.erase(0, 1);
  const std::string here = present.empty() ? fmt::format("there is no {} here", what)
                                           : fmt::format("here: {}", fmt::join(present, ", "));
  const Names entries = split(list, ',');
  const auto names = [&](const std::string& entry, const std::string& name) {
    return is_named(entry, name, exactly);
  };
  if (excludes) {
    const bool leaves_one = std::ranges::any_of(present, [&](const std::string& name) {
      return std::ranges::none_of(entries, [&](const auto& entry) { return names(entry, name); });
    });
    return leaves_one ? std::nullopt
                      : std::optional(fmt::format("it leaves no {}; {}", what, here));
  }
  Names missing;
  for (const std::string& entry : entries)
    if (std::ranges::none_of(present, [&](const auto& name) { return names(entry, name); }))
      missing.push_back(entry);
  if (missing.empty() || (one_is_enough && missing.size() < entries.size())) return std::nullopt;
  return fmt::format("{}: no such {}; {}", fmt::join(missing, ", "), what, here);
}

Names adapters(const FactSource& source) {
  Names ports;
  for (const std::string& device : source.names_in("/sys/class/infiniband"))
    for (const std::string& port : source.names_in("/sys/class/infiniband/" + device + "/ports"))
      ports.push_back(device + ":" + port);
  return ports;
}

std::optional<std::string> wrong_nics(const FactSource& source, const std::string& value) {
  const Names nics = source.names_in("/sys/class/net");
  if (nics.empty()) return std::nullopt;  // not known: even lo is one
  return wrong_list(value, nics, "NIC", true);
}
std::optional<std::string> wrong_adapters(const FactSource& source, const std::string& value) {
  return wrong_list(value, adapters(source), "InfiniBand port", false);
}
std::string path_of(const FactSource& source, const std::string& path) {
  return path.starts_with('/') ? source.root + path : path;
}
std::optional<std::string> no_file(const FactSource& source, const std::string& value) {
  std::error_code error;
  if (std::filesystem::exists(path_of(source, value), error)) return std::nullopt;
  return "there is no such file";
}
/// Of a file that is written; its name may have %h and %p.
std::optional<std::string> no_folder(const FactSource& source, const std::string& value) {
  const std::string folder = std::filesystem::path(value).parent_path();
  std::error_code error;
  if (folder.empty() || folder.find('%') != folder.npos ||
      std::filesystem::is_directory(path_of(source, folder), error))
    return std::nullopt;
  return fmt::format("there is no folder {}", folder);
}

/// A library by its path, its file name, or the NAME of libnccl-KIND-NAME.so.
std::optional<std::string> no_library(const FactSource& source, const std::string& value,
                                      const char* kind) {
  if (value == "none" || value.starts_with("STATIC_PLUGIN")) return std::nullopt;
  if (value.find('/') != value.npos) return no_file(source, value);
  Names folders{"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"};
  for (const char* machine : {"x86_64-linux-gnu", "aarch64-linux-gnu"})
    folders.push_back(std::string("/usr/lib/") + machine);
  if (const std::string* path = source.variable("LD_LIBRARY_PATH"))
    std::ranges::move(split(*path, ':'), std::back_inserter(folders));
  const Names files{value, fmt::format("libnccl-{}-{}.so", kind, value)};
  std::error_code error;
  for (const std::string& file : files)
    for (const std::string& folder : folders)
      if (std::filesystem::exists(fmt::format("{}{}/{}", source.root, folder, file), error))
        return std::nullopt;
  // The linker's cache has the paths of all others, each ended by a zero.
  for (const std::string& part : source.lines_of("/etc/ld.so.cache"))
    for (const std::string& file : files)
      if (part.find("/" + file + '\0') != part.npos) return std::nullopt;
  return fmt::format("no library {} in LD_LIBRARY_PATH or the linker's cache",
                     fmt::join(files, " or "));
}
struct Naming {
  const char* variable;
  std::optional<std::string> (*wrong)(const FactSource& source, const std::string& value);
};
constexpr Naming kNaming[] = {
    {"NCCL_SOCKET_IFNAME", wrong_nics},
    {"NCCL_OOB_NET_IFNAME", wrong_nics},
    {"NCCL_IB_HCA", wrong_adapters},
    {"NCCL_CONF_FILE", no_file},
    {"NCCL_TOPO_FILE", no_file},
    {"NCCL_GRAPH_FILE", no_file},
    {"NCCL_DEBUG_FILE", no_folder},
    {"NCCL_TOPO_DUMP_FILE", no_folder},
    {"NCCL_GRAPH_DUMP_FILE", no_folder},
    {"NCCL_NET_PLUGIN", [](auto& at, auto& name) { return no_library(at, name, "net"); }},
    {"NCCL_TUNER_PLUGIN", [](auto& at, auto& name) { return no_library(at, name, "tuner"); }},
    {"NCCL_PROFILER_PLUGIN",
     [](auto& at, auto& name) { return no_library(at, name, "profiler"); }}};

/// Why a variable's value cannot be followed here, by its name.
Json read_nccl_wrong(const FactSource& source) {
  const Json variables = read_nccl_variables(source);
  Json found = Json::object();
  for (const Naming& naming : kNaming)
    if (const auto value = variables.find(naming.variable); value != variables.end())
      if (const auto wrong = naming.wrong(source, value->get<std::string>()))
        found[naming.variable] = *wrong;
  return found;
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
          {"infiniband", false, read_infiniband},
          {"nics", false, read_nics},
          {"ports", false, read_ports},
          {"master_port", false, read_master_port}};
}

std::vector<Fact> nccl_facts() {
  return {{"nccl_variables", true, read_nccl_variables}, {"nccl_wrong", false, read_nccl_wrong}};
}

}  // namespace shakedown::node
