// NCCL's variables, those of what it sends by, and what they name that this host does not have.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown::node {
namespace {

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

/// Of libfabric and its plugin for NCCL, of UCX and verbs.
Json read_network_variables(const FactSource& source) {
  Json found = Json::object();
  for (const auto& [name, value] : source.environment)
    for (const char* start : {"FI_", "OFI_NCCL_", "UCX_", "RDMAV_"})
      if (name.starts_with(start)) found[name] = value;
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
/// A port of RoCE whose GID of this number, which "auto" and -1 leave to NCCL, is not of RoCE v2.
std::optional<std::string> wrong_gid(const FactSource& source, const std::string& value) {
  if (value.find_first_not_of("0123456789") != value.npos) return std::nullopt;
  Names wrong;
  for (const std::string& port : adapters(source)) {
    const auto colon = port.find(':');
    const std::string at = fmt::format("/sys/class/infiniband/{}/ports/{}/", port.substr(0, colon),
                                       port.substr(colon + 1));
    if (source.line_of(at + "link_layer") != "Ethernet") continue;
    const std::string type = source.line_of(at + "gid_attrs/types/" + value);
    if (type != "RoCE v2")
      wrong.push_back(fmt::format("{} has {} there", port, type.empty() ? "no GID" : type));
  }
  return wrong.empty() ? std::nullopt : std::optional(fmt::format("{}", fmt::join(wrong, ", ")));
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

/// Where the linker finds none of these libraries.
std::optional<std::string> no_library_of(const FactSource& source, const Names& files) {
  Names folders{"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"};
  for (const char* machine : {"x86_64-linux-gnu", "aarch64-linux-gnu"})
    folders.push_back(std::string("/usr/lib/") + machine);
  if (const std::string* path = source.variable("LD_LIBRARY_PATH"))
    std::ranges::move(split(*path, ':'), std::back_inserter(folders));
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

/// A library by its path, its file name, or the NAME of libnccl-KIND-NAME.so.
std::optional<std::string> no_library(const FactSource& source, const std::string& value,
                                      const char* kind) {
  if (value == "none" || value.starts_with("STATIC_PLUGIN")) return std::nullopt;
  if (value.find('/') != value.npos) return no_file(source, value);
  return no_library_of(source, {value, fmt::format("libnccl-{}-{}.so", kind, value)});
}
struct Naming {
  const char* variable;
  std::optional<std::string> (*wrong)(const FactSource& source, const std::string& value);
};
constexpr Naming kNaming[] = {
    {"NCCL_SOCKET_IFNAME", wrong_nics},
    {"NCCL_OOB_NET_IFNAME", wrong_nics},
    {"NCCL_IB_HCA", wrong_adapters},
    {"NCCL_IB_GID_INDEX", wrong_gid},
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

/// How many EFA devices there are, and why NCCL does not use them.
Json read_efa(const FactSource& source) {
  const std::string folder = "/sys/class/infiniband/";
  const auto devices = source.names_in(folder);
  const auto efas = std::ranges::count_if(devices, [&](const std::string& device) {
    return source.line_of(folder + device + "/device/vendor") == kAmazon;
  });
  Json efa{{"devices", efas}, {"unused", Json::array()}};
  const Json variables = read_nccl_variables(source);
  if (efas == 0) return efa;
  if (!variables.contains("NCCL_NET_PLUGIN"))
    if (const auto missing = no_library_of(source, {"libnccl-net.so"}))
      efa["unused"].push_back(*missing);
  const std::string* provider = source.variable("FI_PROVIDER");
  if (provider != nullptr && provider->find("efa") == provider->npos)
    efa["unused"].push_back("FI_PROVIDER=" + *provider);
  return efa;
}

}  // namespace

std::vector<Fact> nccl_facts() {
  return {{"nccl_variables", true, read_nccl_variables},
          {"nccl_wrong", false, read_nccl_wrong},
          {"network_variables", true, read_network_variables},
          {"efa", false, read_efa}};
}

}  // namespace shakedown::node
