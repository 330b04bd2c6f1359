// What is read of a host, from made-up trees, and what the rules make of it.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launch/node/health/check/own_process.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

void write_kernel_files(const Tree& tree) {
  tree.write("/proc/sys/kernel/osrelease", "6.1.0-test\n");
  tree.write("/proc/sys/kernel/numa_balancing", "1\n");
  tree.write("/proc/cpuinfo",
             "model name\t: Test CPU\nphysical id\t: 0\nphysical id\t: 1\nphysical id\t: 1\n");
  tree.write("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,8\n");
  tree.write("/proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units\n"
             "Max stack size            8388608              unlimited            bytes\n"
             "Max open files            512                  4096                 files\n"
             "Max locked memory         unlimited            unlimited            bytes\n");
  tree.write("/proc/meminfo",
             "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nSwapTotal: 8388608 kB\n"
             "SwapFree: 4194304 kB\n");
  tree.write("/proc/modules", "nvidia_peermem 16384 0 - Live\nnvidia 1 2 - Live\n");
  tree.write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n");
  tree.write("/proc/41/stat", "41 (jbd2/sda) S 1\n");
  tree.write("/proc/42/stat", "42 (nfs (x)) D 1\n");
  tree.write("/proc/net/sockstat", "sockets: used 1\nTCP: inuse 6 orphan 0 tw 2 alloc 8 mem 1\n");
  tree.write("/proc/net/sockstat6", "TCP6: inuse 3\n");
  tree.write("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  tree.write("/proc/net/tcp", "  sl local\n   0: 0100007F:7148 00000000:0000 0A 0\n");
}

void write_devices(const Tree& tree) {
  tree.write("/etc/os-release", "NAME=x\nPRETTY_NAME=\"Test Linux 1\"\n");
  tree.write("/sys/devices/system/cpu/online", "0-15\n");
  tree.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  tree.write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  tree.write("/sys/devices/system/node/node0/x", "");
  tree.write("/sys/devices/system/node/node1/x", "");
  tree.write("/sys/devices/system/node/node2/cpulist", "\n");  // a GPU's memory
  tree.write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  const std::string gpu = "/sys/bus/pci/devices/0000:18:00.0/";
  tree.write(gpu + "vendor", "0x10de\n");
  tree.write(gpu + "class", "0x030200\n");
  tree.write(gpu + "iommu_group/type", "identity\n");
  const std::string bridge = "/sys/bus/pci/devices/0000:17:00.0/";
  tree.write(bridge + "vendor", "0x8086\n");
  tree.write(bridge + "class", "0x060400\n");
  std::string config(4096, '\0');
  config[0x100] = 0x01, config[0x103] = 0x14;  // another capability, the next at 0x140
  config[0x140] = 0x0d, config[0x146] = 0x1d;  // access control: redirects
  tree.write(bridge + "config", config);
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1/";
  tree.write("/sys/class/infiniband/mlx5_0/fw_ver", "28.43.1014\n");
  tree.write(port + "state", "1: DOWN\n");
  tree.write(port + "rate", "400 Gb/sec (4X NDR)\n");
  tree.write(port + "link_layer", "InfiniBand\n");
  tree.write(port + "counters/link_downed", "3\n");
  tree.write(port + "counters/symbol_error", "0\n");
  tree.write("/sys/class/net/eth0/operstate", "up\n");
  tree.write("/sys/class/net/eth0/speed", "100000\n");
  tree.write("/sys/class/net/eth0/device/vendor", "0x15b3\n");
  tree.write("/sys/class/net/lo/operstate", "unknown\n");
  tree.write("/run/nvidia-persistenced/nvidia-persistenced.pid", "77\n");
  tree.write("/proc/77/cmdline", std::string("/usr/bin/nvidia-persistenced\0--verbose\0", 39));
  tree.write("/var/log/fabricmanager.log",
             "Fabric Manager version is : 570.1\nx\n"
             "Fabric Manager version is : 575.57.08\n");
}

int passes() { return 0; }
int stops() {
  std::raise(SIGSTOP);
  return 0;
}

}  // namespace

TEST_CASE("facts are read from the kernel's files, and sick ones found", "[node][facts]") {
  const Tree tree;
  write_kernel_files(tree);
  write_devices(tree);
  const FactSource source{tree.path, {{"MASTER_PORT", "29000"}, {"NCCL_ALGO", "Ring"}}};
  const Json facts = read_facts(source, 20);
  CHECK(facts.at("os") == "Test Linux 1");
  CHECK(facts.at("kernel") == "6.1.0-test");
  CHECK(facts.at("processor") == "Test CPU");
  CHECK(facts.at("sockets") == 2);
  CHECK(facts.at("numa_nodes") == 2);
  CHECK(facts.at("cores_online") == 16);
  CHECK(facts.at("cores_allowed").at("cores") == 5);
  CHECK(facts.at("cpu_quota") == 2);
  CHECK(facts.at("memory").at("available_bytes") == 524288 * 1024);
  CHECK(facts.at("swap").at("used_bytes") == 4194304 * 1024.0);
  CHECK(facts.at("memlock") == "unlimited");
  CHECK(facts.at("stack") == 8388608);
  CHECK(facts.at("open_files") == 512);
  CHECK(facts.at("numa_balancing") == true);
  CHECK(facts.at("blocked_processes") == Json{"42 (nfs (x))"});
  CHECK(facts.at("gpus_on_bus") == Json{"0000:18:00.0"});
  CHECK(facts.at("driver_module") == "580.65.06");
  CHECK(facts.at("fabric_manager") == "575.57.08");
  CHECK(facts.at("persistence_daemon") == true);
  tree.write("/proc/77/cmdline",
             std::string("/usr/bin/nvidia-persistenced\0--no-persistence-mode\0", 51));
  CHECK_FALSE(read_facts(source, 20).contains("persistence_daemon"));
  CHECK(facts.at("iommu") == Json{"identity"});
  CHECK(facts.at("open_driver") == false);
  CHECK(facts.at("acs") == Json{{"bridges", 1}, {"redirecting", 1}});
  CHECK(facts.at("infiniband").at(0).at("state") == "DOWN");
  CHECK(facts.at("infiniband").at(0).at("rate_gbits") == 400);
  CHECK(facts.at("infiniband").at(0).at("firmware") == "28.43.1014");
  CHECK(facts.at("nics").size() == 1);
  CHECK(facts.at("ports") == Json{{"range", 28232}, {"in_use", 11}});
  CHECK(facts.at("master_port").at("in_use") == true);
  CHECK(facts.at("nccl_variables") == Json{{"NCCL_ALGO", "Ring"}});
  CHECK_FALSE(facts.contains("shm"));  // no such folder there
  CHECK_FALSE(facts.contains("stalled"));
  // What is sick of it is found.
  for (const char* rule :
       {"cpu-affinity", "swap", "limits", "governor", "clocksource", "numa-balancing",
        "blocked-processes", "acs", "infiniband", "tcp-ports", "nccl-variables"}) {
    INFO(rule);
    CHECK(outcome_of(facts, rule) == Outcome::warn);
  }
  CHECK(outcome_of(facts, "fabric-manager") == Outcome::fail);
  CHECK(outcome_of(facts, "iommu") == Outcome::pass);
  CHECK(outcome_of(facts, "peermem") == Outcome::pass);
}

TEST_CASE("nothing readable passes no rule of the host", "[node][facts][closed]") {
  const Json nothing = Json::object();
  for (const HostRule& rule : host_rules()) {
    INFO(rule.name);
    if (rule.name != std::string("host-stall"))
      CHECK(worst(rule.judge(nothing)).outcome == Outcome::unknown);
  }
}

TEST_CASE("CHS: a file that cannot be read in time fails, others are read",
          "[node][facts][closed]") {
  const Tree tree;
  tree.write("/proc/sys/kernel/osrelease", "6.1.0-test\n");
  std::filesystem::create_directories(tree.path + "/etc");
  REQUIRE(mkfifo((tree.path + "/etc/os-release").c_str(), 0600) == 0);  // opening it blocks
  const Json facts = read_facts({tree.path, {}}, 1);
  CHECK(facts.at("stalled") == Json{"os"});
  CHECK(facts.at("kernel") == "6.1.0-test");
  CHECK(outcome_of(facts, "host-stall") == Outcome::fail);
  // Lets the reader go.
  tree.write("/etc/os-release", "x");
}

TEST_CASE("a processor of ARM, sockets and NUMA nodes of a Grace are known", "[node][facts]") {
  const Tree tree;
  tree.write("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n");
  const std::string cpu = "/sys/devices/system/cpu/cpu";
  tree.write(cpu + "0/topology/physical_package_id", "0\n");
  tree.write(cpu + "72/topology/physical_package_id", "1\n");
  tree.write("/sys/devices/system/node/node0/cpulist", "0-71\n");
  tree.write("/sys/devices/system/node/node1/cpulist", "\n");
  const Json facts = read_facts({tree.path, {}}, 20, system_facts());
  CHECK(facts.at("processor") == "ARM implementer 0x41, part 0xd4f");
  CHECK(facts.at("sockets") == 2);
  CHECK(facts.at("numa_nodes") == 1);
}

TEST_CASE("the IOMMU is judged by the GPUs' groups, on any processor", "[node][facts]") {
  const auto judged = [](const std::string& type) {
    const Tree tree;
    tree.write("/proc/cmdline", "iommu.passthrough=1\n");
    tree.write("/sys/kernel/iommu_groups/0/type", type + "\n");
    return outcome_of(read_facts({tree.path, {}}, 20, bus_facts()), "iommu");
  };
  CHECK(judged("identity") == Outcome::pass);
  CHECK(judged("DMA-FQ") == Outcome::warn);
  CHECK(judged("") == Outcome::unknown);
}

TEST_CASE("a port of RoCE slower than the others of its board is named", "[node][facts]") {
  const Tree tree;
  for (int i = 0; i < 3; ++i) {
    const std::string device = fmt::format("/sys/class/infiniband/mlx5_{}/", i);
    tree.write(device + "board_id", i < 2 ? "MT_0000000838\n" : "MT_0000000359\n");
    tree.write(device + "ports/1/state", "4: ACTIVE\n");
    tree.write(device + "ports/1/link_layer", "Ethernet\n");
    tree.write(device + "ports/1/rate", i == 0 ? "400 Gb/sec (4X NDR)\n" : "100 Gb/sec (4X EDR)\n");
    tree.write(device + "ports/1/counters/link_downed", "0\n");
    tree.write(device + "ports/1/counters/symbol_error", "0\n");
  }
  const Json facts = read_facts({tree.path, {}}, 20, network_facts());
  std::vector<std::string> causes;
  for (const HostRule& rule : host_rules())
    if (rule.name == std::string("infiniband"))
      for (const Judgement& judgement : rule.judge(facts)) causes.push_back(judgement.cause);
  CHECK(causes == Texts{// of management the third: another board
                        "mlx5_1:1 at 100 Gbit/s, the fastest of its kind at 400"});
}

TEST_CASE("shared memory that is no tmpfs, cannot be written or has files left over",
          "[node][facts]") {
  const Tree tree;
  const auto shm = [&] { return read_facts({tree.path, {}}, 20).at("shm"); };
  for (const char* name : {"nccl-a", "nccl-b", "vader_segment.h.0.1.2", "other"})
    tree.touch(fmt::format("dev/shm/{}", name));
  std::filesystem::create_symlink("other", tree / "dev/shm/sm_segment.link");
  tree.write("/proc/7/maps", "7f00-7f01 rw-s 00000000 00:17 3   /dev/shm/nccl-a\n");
  tree.write("/proc/8/maps", "7f00-7f01 rw-s 00000000 00:17 3   /dev/shm/nccl-b (deleted)\n");
  CHECK_FALSE(shm().contains("file_system"));
  for (const auto& [mounts, type] : std::vector<std::pair<std::string, const char*>>{
           {"overlay / overlay rw 0 0\n", "overlay"},
           {"overlay / overlay rw 0 0\nshm /dev/shm tmpfs rw 0 0\n", "tmpfs"}}) {
    tree.write("/proc/self/mounts", mounts);
    CHECK(shm().at("file_system") == type);
  }
  CHECK(shm().at("left_over") == 1);
  CHECK(shm().at("writable") == true);
}

TEST_CASE("what NCCL's variables name is looked for", "[node][facts][closed]") {
  const Tree tree;
  for (const char* nic : {"eth0", "lo"}) tree.write(fmt::format("/sys/class/net/{}/x", nic), "");
  for (const char* port : {"mlx5_0/ports/1", "mlx5_1/ports/1"})
    tree.write(fmt::format("/sys/class/infiniband/{}/x", port), "");
  tree.write("/opt/topo.xml", "");
  tree.write("/opt/lib/libnccl-net-aws.so", "");
  const auto outcome = [&](const std::string& name, const std::string& value) {
    const Json facts = read_facts(
        {tree.path, {{"NCCL_" + name, value}, {"LD_LIBRARY_PATH", "/opt/none:/opt/lib"}}}, 20,
        nccl_facts());
    return outcome_of(facts, "nccl-variables");
  };
  using enum Outcome;
  CHECK(outcome("SOCKET_IFNAME", "ib7") == fail);  // nccl#1837
  for (const char* value : {"eth", "eth0", "=eth0", "ib,eth", "^docker", "^lo"})
    CHECK(outcome("SOCKET_IFNAME", value) == pass);
  for (const char* value : {"=eth", "^eth,lo", "^=eth0,lo"})
    CHECK(outcome("SOCKET_IFNAME", value) == fail);
  const auto wrong = [&](const std::string& name, const std::string& value) {
    const Json facts = read_facts({tree.path, {{"NCCL_" + name, value}}}, 20, nccl_facts());
    return facts.at("nccl_wrong").value("NCCL_" + name, "");
  };
  CHECK(wrong("SOCKET_IFNAME", "ib7") == "ib7: no such NIC; here: eth0, lo");
  for (const char* value : {"mlx5", "mlx5_0", "=mlx5_0,mlx5_1:1", "^mlx5_0", "mlx5_0:1"})
    CHECK(wrong("IB_HCA", value).empty());
  CHECK(wrong("IB_HCA", "mlx5_0,mlx5_9") ==
        "mlx5_9: no such InfiniBand port; here: mlx5_0:1, mlx5_1:1");
  CHECK_FALSE(wrong("IB_HCA", "mlx5_0:2").empty());
  CHECK(wrong("TOPO_FILE", "/opt/topo.xml").empty());
  CHECK_FALSE(wrong("TOPO_FILE", "/opt/other.xml").empty());
  CHECK(wrong("DEBUG_FILE", "/opt/nccl.%h.%p").empty());
  CHECK(outcome("DEBUG_FILE", "/nowhere/nccl.%h") == warn);
  CHECK(outcome("NET_PLUGIN", "aws") == pass);
  CHECK(outcome("NET_PLUGIN", "none") == pass);
  CHECK(outcome("NET_PLUGIN", "ofi") == warn);
  CHECK(outcome("TUNER_PLUGIN", "/opt/lib/libnccl-net-aws.so") == pass);
}

// A check in a process of its own: it ends in time whatever its calls do.

TEST_CASE("the code of a check in its own process is that of the check", "[node][own_process]") {
  CHECK(run_in_own_process(20, passes).code == 0);
  CHECK(run_in_own_process(20, [] { return 3; }).code == 3);
  CHECK(run_in_own_process(20, []() -> int { std::_Exit(5); }).code == 5);
}

TEST_CASE("a check that cannot end or that dies is no pass", "[node][own_process][closed]") {
  const auto start = std::chrono::steady_clock::now();
  // As a process in uninterruptible sleep: it makes no step more.
  const Ended stopped = run_in_own_process(0.2, stops);
  CHECK_FALSE(stopped.code);
  CHECK(stopped.why == "it did not end within 0.2 s");
  const Ended died = run_in_own_process(20, [] {
    std::signal(SIGUSR2, SIG_DFL);
    std::raise(SIGUSR2);
    return 0;
  });
  CHECK_FALSE(died.code);
  CHECK(died.why == "it died of signal " + std::to_string(SIGUSR2));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a check that hangs is reported by later ones", "[node][own_process][closed]") {
  const Tree tree;
  const std::string note = tree.path + "/note";
  CHECK(run_in_own_process(0.2, stops, note).why == "it did not end within 0.2 s");
  CHECK(run_in_own_process(20, passes, note).code == 0);  // SIGKILL has ended that one
  // This process, in the place of one that it cannot end.
  note_left_over(note, getpid());
  const Ended recent = run_in_own_process(20, passes, note);
  CHECK_FALSE(recent.code);
  CHECK_FALSE(recent.hangs);
  CHECK_THAT(recent.why, ContainsSubstring(fmt::format("pid {}", getpid())) &&
                             ContainsSubstring("no other was started"));
  std::string pid, started;
  REQUIRE(std::ifstream(note) >> pid >> started);
  const auto noted = [&](const std::string& since, long long killed) {
    std::ofstream(note) << fmt::format("{} {} {}\n", pid, since, killed);
    return run_in_own_process(20, passes, note);
  };
  CHECK(noted(started, std::time(nullptr) - 100).hangs);
  CHECK(noted("1", 0).code == 0);  // another process has the number now
  std::ofstream(note) << "nonsense";
  CHECK(run_in_own_process(20, passes, note).code == 0);
}

}  // namespace shakedown::node
