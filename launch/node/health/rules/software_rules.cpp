// Libraries, variables, and the fabric manager.
#include "launch/node/health/rules/host_rules.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

namespace shakedown::node {
namespace {

std::string major_of(const std::string& version) { return version.substr(0, version.find('.')); }

Judgements judge_libraries(const Json& libraries, const Json&) {
  Judgements all;
  std::vector<std::string> same;
  for (const auto& [name, version] : libraries.items()) {
    const auto built = libraries.find(name + "_built");
    if (built == libraries.end()) continue;
    const std::string now = version, then = *built;
    if (now.empty())
      all.push_back(not_known(fmt::format("{}: the version loaded is not known", name)));
    else if (major_of(now) != major_of(then))
      all.push_back(failure(Class::software,
                            fmt::format("{} {} is loaded, built against {}", name, now, then),
                            fmt::format("load {} {}, or build again", name, then)));
    else
      same.push_back(now == then ? fmt::format("{} {}", name, now)
                                 : fmt::format("{} {} (built against {})", name, now, then));
  }
  if (!same.empty()) all.push_back(passed(fmt::format("{}", fmt::join(same, ", "))));
  return all;
}

Judgement judge_blocking(const Json& variables, const Json&) {
  if (variables.value("CUDA_LAUNCH_BLOCKING", "0") == "0")
    return passed("CUDA_LAUNCH_BLOCKING is not set");
  return warning(Class::config, "CUDA_LAUNCH_BLOCKING is set: every launch waits for the GPU",
                 "unset CUDA_LAUNCH_BLOCKING");
}

Judgements judge_nccl(const Json& variables, const Json& facts) {
  const Json& wrong = fact_of(facts, "nccl_wrong");
  auto all = explain_nccl(variables.get<NcclVariables>(),
                          wrong.is_null() ? NcclVariables{} : wrong.get<NcclVariables>());
  if (all.empty()) all.push_back(passed("no NCCL variable is set"));
  return all;
}

Judgement judge_fabric_manager(const Json& driver, const Json& facts) {
  const Json& manager = fact_of(facts, "fabric_manager");
  if (manager.is_null()) return not_known("the fabric manager's version is not readable here");
  if (manager == driver) return passed("fabric manager of the driver's version");
  return failure(Class::software,
                 fmt::format("fabric manager {}, driver {}: they must be the same",
                             manager.get<std::string>(), driver.get<std::string>()),
                 "install nvidia-fabricmanager of the driver's version and restart it");
}

}  // namespace

std::vector<HostRule> software_rules() {
  return {{"libraries", "libraries loaded, and built against", "libraries",
           not_known("versions of the libraries are not known"), judge_libraries},
          {"launch-blocking", "CUDA_LAUNCH_BLOCKING", "cuda_variables",
           not_known("the environment is not readable"), judge_blocking},
          {"nccl-variables", "NCCL variables that are set, and what they do", "nccl_variables",
           not_known("the environment is not readable"), judge_nccl},
          {"fabric-manager", "the fabric manager's version, next to the driver's", "driver_module",
           not_known("the version of the GPU driver's module is not readable"),
           judge_fabric_manager, true}};
}

namespace {

struct Variable {
  const char* name;  // without NCCL_
  const char* slow;  // the value that costs speed; "*": any; "": none
  const char* does;
};
constexpr Variable kVariables[] = {
    {"ALGO", "*", "allows only these algorithms (Ring, Tree, NVLS, CollnetDirect)"},
    {"BUFFSIZE", "*", "size of the buffers between two GPUs"},
    {"CHECKS_DISABLE", "", "leaves out checks of arguments"},
    {"COLLNET_ENABLE", "", "reductions in the network's switches (SHARP)"},
    {"COMM_ID", "", "address where ranks meet"},
    {"CONF_FILE", "", "file from which further variables are read"},
    {"CROSS_NIC", "", "whether a ring may use different NICs on different nodes"},
    {"CUMEM_ENABLE", "", "memory by the driver's virtual memory calls"},
    {"DEBUG", "", "writes a log: WARN, INFO, TRACE"},
    {"DEBUG_FILE", "", "file of the log"},
    {"DEBUG_SUBSYS", "", "parts of NCCL that write to the log"},
    {"DMABUF_ENABLE", "0", "GPUDirect RDMA by dma-buf; 0 turns it off"},
    {"GRAPH_DUMP_FILE", "", "file to which rings and trees are written"},
    {"GRAPH_FILE", "*", "fixes the rings and trees from a file"},
    {"IB_ADAPTIVE_ROUTING", "", "adaptive routing of InfiniBand"},
    {"IB_CUDA_SUPPORT", "0", "GPUDirect RDMA; 0 turns it off"},
    {"IB_DISABLE", "1", "1 turns InfiniBand off: between nodes TCP is left"},
    {"IB_GID_INDEX", "", "GID that RoCE uses; a wrong one fails or falls back"},
    {"IB_HCA", "*", "uses only these InfiniBand devices"},
    {"IB_PCI_RELAXED_ORDERING", "0", "relaxed ordering of PCIe writes; 0 turns it off"},
    {"IB_QPS_PER_CONNECTION", "", "queue pairs per connection"},
    {"IB_RETRY_CNT", "", "retries before a connection fails"},
    {"IB_SL", "", "service level of InfiniBand"},
    {"IB_SPLIT_DATA_ON_QPS", "", "whether a message uses all queue pairs"},
    {"IB_TC", "", "traffic class of InfiniBand"},
    {"IB_TIMEOUT", "", "time after which a packet is sent again"},
    {"IGNORE_CPU_AFFINITY", "", "lets NCCL place its threads outside of the rank's cores"},
    {"LAUNCH_MODE", "", "launches of a group: PARALLEL or GROUP"},
    {"LOCAL_REGISTER", "", "registers buffers of captured graphs"},
    {"MAX_CTAS", "*", "most blocks of a kernel, which bounds its bandwidth"},
    {"MAX_NCHANNELS", "*", "most channels, which bounds the bandwidth"},
    {"MAX_NRINGS", "*", "old name of NCCL_MAX_NCHANNELS"},
    {"MIN_CTAS", "", "fewest blocks of a kernel"},
    {"MIN_NCHANNELS", "", "fewest channels"},
    {"MIN_NRINGS", "", "old name of NCCL_MIN_NCHANNELS"},
    {"NET", "*", "uses only this network module"},
    {"NET_GDR_LEVEL", "*", "how near GPU and NIC must be for GPUDirect RDMA"},
    {"NET_GDR_READ", "0", "GPUDirect RDMA for sends; 0 turns it off"},
    {"NET_PLUGIN", "", "network plugin: libnccl-net-NAME.so"},
    {"NET_SHARED_BUFFERS", "", "shares network buffers between connections"},
    {"OOB_NET_IFNAME", "", "NICs for ranks to meet"},
    {"PROFILER_PLUGIN", "", "plugin that writes a profile"},
    {"NSOCKS_PERTHREAD", "", "sockets per thread of TCP"},
    {"NTHREADS", "*", "threads per block of a kernel"},
    {"NVB_DISABLE", "1", "1 turns routes through another GPU off"},
    {"NVLS_ENABLE", "0", "reductions in NVSwitches; 0 turns them off"},
    {"P2P_DISABLE", "1", "1 turns NVLink and PCIe peer access off: memory of the host is left"},
    {"P2P_LEVEL", "*", "how near GPUs must be for peer access"},
    {"P2P_NVL_CHUNKSIZE", "*", "size of a piece of a message over NVLink"},
    {"P2P_DIRECT_DISABLE", "1", "1 turns direct peer access within a process off"},
    {"PROTO", "*", "allows only these protocols (LL, LL128, Simple)"},
    {"PROXY_DUMP_SIGNAL", "", "signal at which the proxy writes its state"},
    {"PXN_DISABLE", "1", "1 turns sending through another GPU's NIC off"},
    {"RAS_ENABLE", "", "service that reports hung ranks"},
    {"RUN_DIAGNOSTICS", "", "tests every pair of GPUs when a communicator starts"},
    {"SHM_DISABLE", "1", "1 turns shared memory off: 15 to 20 % slower without peer access"},
    {"SOCKET_FAMILY", "", "AF_INET or AF_INET6"},
    {"SOCKET_IFNAME", "", "NICs for TCP, and for ranks to meet"},
    {"SOCKET_NTHREADS", "", "threads of TCP per connection"},
    {"TOPO_DUMP_FILE", "", "file to which the topology is written"},
    {"TOPO_FILE", "*",
     "topology from a file, not from the machine: a wrong one is slow (AzNHC#142)"},
    {"TUNER_PLUGIN", "", "plugin that chooses algorithms"},
    {"VERSION", "", "NVIDIA's container images name their NCCL here: NCCL does not read it"},
    {"WORK_FIFO_DEPTH", "", "length of the queue of work"},
};

}  // namespace

Judgements explain_nccl(const NcclVariables& variables, const NcclVariables& wrong) {
  Judgements judgements;
  for (const auto& [name, value] : variables) {
    if (!name.starts_with("NCCL_")) continue;
    const std::string text = fmt::format("{}={}", name, value);
    const Variable* known = nullptr;
    for (const Variable& variable : kVariables)
      if (name.substr(5) == variable.name) known = &variable;
    if (const auto reason = wrong.find(name); reason != wrong.end()) {
      const auto judge = name.ends_with("_IFNAME") ? failure : warning;
      judgements.push_back(judge(Class::config, fmt::format("{}: {}", text, reason->second),
                                 fmt::format("unset {}, or name what this node has", name)));
    } else if (known == nullptr)
      judgements.push_back(warning(Class::config, text + ": not known to this program",
                                   "check the spelling: NCCL ignores names it does not know"));
    else if (std::string(known->slow) == "*" || value == known->slow)
      judgements.push_back(warning(Class::config, fmt::format("{}: {}", text, known->does),
                                   fmt::format("unset {} unless it is needed", name)));
    else
      judgements.push_back(passed(fmt::format("{}: {}", text, known->does)));
  }
  return judgements;
}

}  // namespace shakedown::node
