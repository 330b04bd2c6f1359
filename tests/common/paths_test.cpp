// What joins two GPUs, of what NVML reports of each.
#include "common/units.hpp"

#include <cstring>
#include <map>

#include "tests/catch.hpp"

namespace shakedown {
namespace {

/// Two nodes of two GPUs each; rank 1 has `links_of_1` NVLinks.
Paths paths_with(const PathEnd& end, Between between, const std::string& board = "NVIDIA H100",
                 int links_of_1 = 18) {
  std::vector<Unit> units(4);
  std::vector<PathEnd> ends(4, end);
  for (int rank = 0; rank < 4; ++rank) {
    Unit& unit = units[static_cast<std::size_t>(rank)];
    unit.rank = rank;
    unit.uuid = "GPU-" + std::to_string(rank);
    unit.board = board;
    ends[static_cast<std::size_t>(rank)].wires.bus_id = "0000:0" + std::to_string(rank % 2);
    ends[static_cast<std::size_t>(rank)].node = {between, between};
  }
  ends[1].wires.links = links_of_1;
  return {map_nodes({"n1", "n1", "n2", "n2"}), units, ends};
}

PathEnd switched(bool fabric, const std::string& clique = "") {
  PathEnd end;
  end.wires = {"", fabric, clique, 18, 18, {}, 25};
  return end;
}

PathEnd direct() {
  PathEnd end;
  end.wires = {"", false, "", 12, 0, {"0000:01", "0000:01", "0000:01", "0000:01", "0000:07"}, 25};
  return end;
}

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

struct Pci {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Field {
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type;
  int status;
  unsigned long long value;
};
unsigned ancestor = 0;
unsigned p2p = 0;

int init() { return 0; }
int handle(const char* uuid, void** device) { return *device = const_cast<char*>(uuid), 0; }
int pci(void*, Pci* to) { return std::strcpy(to->bus_id, "00000000:19:00.0"), 0; }
int state(void*, unsigned link, unsigned* active) {
  if (link >= 6) return 2;
  return *active = link != 5, 0;
}
int remote_type(void*, unsigned link, unsigned* type) { return *type = link < 2 ? 2 : 0, 0; }
int remote(void*, unsigned, Pci* to) { return std::strcpy(to->bus_id, "00000000:3B:00.0"), 0; }
int fields(void*, int, Field* to) {
  to->status = 0;
  to->type = 3;
  return to->value = 26562, 0;
}
int common_ancestor(void*, void*, unsigned* level) { return *level = ancestor, 0; }
int p2p_status(void*, void*, unsigned index, unsigned* status) {
  return *status = index == 2 ? p2p : 0, 0;
}

std::shared_ptr<Nvml> made_nvml() {
  static const std::map<std::string, void*> functions{
      {"nvmlInit_v2", address(init)},
      {"nvmlShutdown", address(init)},
      {"nvmlDeviceGetHandleByUUID", address(handle)},
      {"nvmlDeviceGetPciInfo_v3", address(pci)},
      {"nvmlDeviceGetNvLinkState", address(state)},
      {"nvmlDeviceGetNvLinkRemoteDeviceType", address(remote_type)},
      {"nvmlDeviceGetNvLinkRemotePciInfo_v2", address(remote)},
      {"nvmlDeviceGetFieldValues", address(fields)},
      {"nvmlDeviceGetTopologyCommonAncestor", address(common_ancestor)},
      {"nvmlDeviceGetP2PStatus", address(p2p_status)}};
  return Nvml::open([](const char* name) {
    const auto found = functions.find(name);
    return found == functions.end() ? nullptr : found->second;
  });
}

}  // namespace

TEST_CASE("GPUs behind NVSwitches have the wires of the one with fewer links", "[paths]") {
  for (const Paths& paths :
       {paths_with(switched(true), Between::nvlink), paths_with(switched(false), Between::nvlink),
        paths_with(switched(true), Between::unknown)}) {
    CHECK(paths.between(0, 1).path_class == "nvswitch");
    CHECK(paths.between(0, 1).peak_gbs == 450);
    CHECK(paths.between(0, 1).clique.empty());
    CHECK(paths.between(0, 2).path_class == "network_rail");
    CHECK(paths.between(0, 3).path_class == "network");
  }
  const Paths half = paths_with(switched(true), Between::nvlink, "NVIDIA H100", 9);
  CHECK(half.between(0, 1).peak_gbs == 225);
  CHECK(half.between(1, 0).peak_gbs == 225);
}

TEST_CASE("a fabric of several nodes joins them, under its clique", "[paths]") {
  const Paths paths = paths_with(switched(true, "ab12.7"), Between::nvlink);
  CHECK(paths.between(0, 3).path_class == "nvswitch");
  CHECK(paths.between(0, 3).clique == "ab12.7");
  CHECK(paths.between(0, 1).clique == "ab12.7");
}

TEST_CASE("direct NVLinks are those that lead to the other GPU", "[paths]") {
  const Path on_board =
      paths_with(direct(), Between::nvlink, "NVIDIA A100-SXM4-40GB").between(0, 1);
  CHECK(on_board.path_class == "nvlink");
  CHECK(on_board.peak_gbs == 100);
  CHECK(paths_with(direct(), Between::nvlink, "NVIDIA H100 NVL").between(0, 1).path_class ==
        "nvlink_bridge");
}

TEST_CASE("without NVLink the class is the common ancestor's; nothing known is unknown",
          "[paths]") {
  const auto class_by = [](Between between) {
    return paths_with(PathEnd(), between).between(0, 1).path_class;
  };
  CHECK(class_by(Between::pcie_switch) == "pcie_switch");
  CHECK(class_by(Between::host_bridge) == "host_bridge");
  CHECK(class_by(Between::socket) == "socket");
  CHECK(class_by(Between::unknown) == "unknown");
  const Paths cpu(map_nodes({"n1", "n1"}), std::vector<Unit>(2), std::vector<PathEnd>(2));
  CHECK(cpu.between(0, 1).path_class == "host");
  // Registered with a fabric, and yet joined by PCIe.
  CHECK(paths_with(switched(true), Between::socket).between(0, 1).path_class == "socket");
}

TEST_CASE("NVLinks, their other ends and their speed are read of NVML", "[paths]") {
  const NvlinkWires wires = made_nvml()->nvlink_wires("GPU-1");
  CHECK(wires.bus_id == "00000000:19:00.0");
  CHECK_FALSE(wires.fabric);
  CHECK(wires.links == 5);
  CHECK(wires.to_switch == 2);
  CHECK(wires.gpus == std::vector<std::string>(3, "00000000:3B:00.0"));
  CHECK(wires.link_gbs == 25);
  p2p = 0;
  CHECK(made_nvml()->between("GPU-1", "GPU-2") == Between::nvlink);
  p2p = 5;
  for (const auto& [level, between] : {std::pair{10U, Between::pcie_switch},
                                       {20U, Between::pcie_switch},
                                       {30U, Between::host_bridge},
                                       {40U, Between::host_bridge},
                                       {50U, Between::socket}}) {
    ancestor = level;
    CHECK(made_nvml()->between("GPU-1", "GPU-2") == between);
  }
}

}  // namespace shakedown
