// InfiniBand, NICs and TCP ports.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown::node {
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
std::string word_of(const std::string& line) {
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
      add(fields, "state", word_of(source.line_of(at + "state")));
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
