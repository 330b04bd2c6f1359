// libplacement.so, preloaded: on which SM each block of a tool's matrix products runs, by a patch
// that the Compute Sanitizer's API puts into the libraries' own kernels. q is the share of blocks
// that run on another SM than in the kernel's first launch. PLACEMENT_LOG: the file, written once a
// second.
#include <sanitizer.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/faulty/placement/placement.hpp"

namespace {

using shakedown::placement::Launches;

constexpr std::uint32_t kMostLaunches = 4096;
constexpr std::uint32_t kMostEntries = 1U << 22U;  // of Launches::sm

struct Kernel {
  std::string name;
  std::uint32_t cluster;  // blocks
  Launches seen;
  Launches* on_device;
  std::uint32_t launches;  // that the process made
  Sanitizer_StreamHandle stream;
};

struct Tool {
  std::recursive_mutex mutex;  // the API loads modules of its own within a callback
  std::map<std::tuple<CUfunction, std::uint32_t, std::uint32_t, std::uint32_t>, Kernel> kernels;
  std::set<CUcontext> has_patch;
  std::chrono::steady_clock::time_point written = std::chrono::steady_clock::now();
};

Tool& tool() {
  static auto* const only = new Tool;  // callbacks come until the process has ended
  return *only;
}

void must(SanitizerResult result, const char* what) {
  if (result == SANITIZER_SUCCESS) return;
  const char* text = nullptr;
  sanitizerGetResultString(result, &text);
  std::fprintf(stderr, "libplacement.so: %s: %s\n", what, text == nullptr ? "?" : text);
  std::_Exit(1);
}
#define MUST(call) must(call, #call)

bool is_product(std::string_view name) {
  for (const std::string_view part : {"gemm", "nvjet", "cutlass", "xmma"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

/// When a module is loaded: the API patches its kernels as they are loaded. Patched at
/// FUNCTIONS_LAZY_LOADED instead, they run without the patch.
void patch(CUcontext context, CUmodule module) {
  if (tool().has_patch.insert(context).second)
    MUST(sanitizerAddPatchesFromFile(PLACEMENT_PATCH, context));
  MUST(sanitizerPatchInstructions(SANITIZER_INSTRUCTION_BLOCK_ENTER, module, "placement_enter"));
  MUST(sanitizerPatchModule(module));
}

/// The kernel's launches so far: how many were seen whole after the first one, q, and the share of
/// them that had any block on another SM.
void write_line(std::FILE* out, const Kernel& kernel) {
  const std::uint32_t blocks = kernel.seen.blocks;
  std::vector<std::uint16_t> sm(std::size_t{kernel.seen.launches} * blocks);
  MUST(sanitizerMemcpyDeviceToHost(sm.data(), kernel.seen.sm, sm.size() * sizeof(sm[0]),
                                   kernel.stream));
  std::uint64_t whole = 0, moved = 0, other = 0;
  for (auto at = sm.begin() + blocks; at != sm.end(); at += blocks) {
    if (std::find(at, at + blocks, 0) != at + blocks) break;
    std::uint64_t elsewhere = 0;
    for (std::uint32_t block = 0; block < blocks; ++block) elsewhere += at[block] != sm[block];
    ++whole;
    moved += elsewhere;
    other += elsewhere > 0;
  }
  std::fprintf(out, R"({"kernel": "%s", "blocks": %u, "cluster": %u, "launches": %u, "seen": %llu)",
               kernel.name.c_str(), blocks, kernel.cluster, kernel.launches,
               static_cast<unsigned long long>(whole));
  if (whole > 0)
    std::fprintf(out, R"(, "q": %.4g, "moved": %.4g)",
                 static_cast<double>(moved) / static_cast<double>(whole * blocks),
                 static_cast<double>(other) / static_cast<double>(whole));
  std::fputs("}\n", out);
}

void write_log() {
  const char* const file = std::getenv("PLACEMENT_LOG");
  std::FILE* const out = std::fopen(file == nullptr ? "placement.jsonl" : file, "w");
  if (out == nullptr) return;
  for (const auto& [which, kernel] : tool().kernels) write_line(out, kernel);
  std::fclose(out);
}

Kernel prepared(const Sanitizer_LaunchData& launch) {
  const std::uint32_t blocks = launch.gridDim_x * launch.gridDim_y * launch.gridDim_z;
  Kernel kernel{launch.functionName,
                launch.clusterDim_x * launch.clusterDim_y * launch.clusterDim_z,
                {0, blocks, launch.gridDim_x, launch.gridDim_y,
                 std::clamp(kMostEntries / blocks, 1U, kMostLaunches), nullptr},
                nullptr,
                0,
                launch.hStream};
  const std::uint64_t bytes = std::uint64_t{kernel.seen.launches} * blocks * sizeof(std::uint16_t);
  MUST(sanitizerAlloc(launch.context, reinterpret_cast<void**>(&kernel.seen.sm), bytes));
  MUST(sanitizerMemset(kernel.seen.sm, 0, bytes, launch.hStream));
  MUST(sanitizerAlloc(launch.context, reinterpret_cast<void**>(&kernel.on_device),
                      sizeof(kernel.seen)));
  MUST(sanitizerMemcpyHostToDeviceAsync(kernel.on_device, &kernel.seen, sizeof(kernel.seen),
                                        launch.hStream));
  MUST(sanitizerStreamSynchronize(launch.hStream));
  return kernel;
}

void launching(const Sanitizer_LaunchData& launch) {
  const auto now = std::chrono::steady_clock::now();
  if (now - tool().written > std::chrono::seconds(1)) {
    write_log();
    tool().written = now;
  }
  const std::tuple key(launch.function, launch.gridDim_x, launch.gridDim_y, launch.gridDim_z);
  auto at = tool().kernels.find(key);
  if (at == tool().kernels.end()) at = tool().kernels.emplace(key, prepared(launch)).first;
  ++at->second.launches;
  MUST(sanitizerSetLaunchCallbackData(launch.hLaunch, launch.function, launch.hStream,
                                      at->second.on_device));
}

void called(void* /*userdata*/, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
            const void* data) {
  const std::lock_guard lock(tool().mutex);
  if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
    const auto& loaded = *static_cast<const Sanitizer_ResourceModuleData*>(data);
    patch(loaded.context, loaded.module);
  }
  if (domain == SANITIZER_CB_DOMAIN_LAUNCH && id == SANITIZER_CBID_LAUNCH_BEGIN) {
    const auto& launch = *static_cast<const Sanitizer_LaunchData*>(data);
    if (launch.functionName != nullptr && is_product(launch.functionName)) launching(launch);
  }
}

[[maybe_unused]] const bool subscribed = [] {
  Sanitizer_SubscriberHandle subscriber = nullptr;
  MUST(sanitizerSubscribe(&subscriber, called, nullptr));
  MUST(sanitizerEnableDomain(1, subscriber, SANITIZER_CB_DOMAIN_LAUNCH));
  MUST(sanitizerEnableDomain(1, subscriber, SANITIZER_CB_DOMAIN_RESOURCE));
  return true;
}();

}  // namespace
