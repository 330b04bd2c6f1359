// The GPUs that the library in NVML's place has, and what "fake" makes of them.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/nvml_library.hpp"

namespace fake_nvml {

using Json = nlohmann::json;
using namespace shakedown::nvml;

struct Gpu {
  Json values;
  Json fake;
  std::map<std::string, int> calls;  // by key that grows
  std::mutex mutex;
};

struct Host {
  Json values;
  Json fake;
  std::vector<Gpu*> gpus;
};

/// Of the last nvmlInit. Never released: threads that it has stalled still have their GPU.
inline Host* host = nullptr;

inline Host* read_host() {
  auto* made = new Host;
  const char* const path = std::getenv("SHAKEDOWN_FAKE_NVML");
  made->values = path == nullptr
                     ? Json{{"driver_version", "999.1"},
                            {"gpus", Json::array({{{"uuid", "GPU-1"}, {"power_w", 250}}})}}
                     : Json::parse(std::ifstream(path));
  made->fake = made->values.value("fake", Json::object());
  for (const Json& gpu : made->values.value("gpus", Json::array())) {
    made->gpus.push_back(new Gpu);
    made->gpus.back()->values = gpu;
    made->gpus.back()->fake = gpu.value("fake", Json::object());
  }
  return made;
}

/// What "fake" makes of a call: its error, after its stall.
inline int spoilt(const Json& fake, const char* function) {
  if (const double stall_s = fake.value("stall_s", Json::object()).value(function, 0.0))
    std::this_thread::sleep_for(std::chrono::duration<double>(stall_s));
  return fake.value("error", Json::object()).value(function, kSuccess);
}

inline Gpu& gpu_of(Device device) { return *static_cast<Gpu*>(device); }

/// The value of a key, or null.
inline Json value_of(Gpu& gpu, const char* key) {
  Json value = gpu.values.value(key, Json());
  const double growth = gpu.fake.value("grows", Json::object()).value(key, 0.0);
  if (value.is_null() || growth == 0) return value;
  const std::lock_guard lock(gpu.mutex);
  return value.get<double>() + growth * gpu.calls[key]++;
}

template <class Number>
int answer(const char* function, Device device, const char* key, Number* to, double scale = 1) {
  Gpu& gpu = gpu_of(device);
  if (const int error = spoilt(gpu.fake, function)) return error;
  const Json value = value_of(gpu, key);
  if (value.is_null()) return kNotSupported;
  *to = static_cast<Number>(value.is_boolean() ? value.get<bool>()
                                               : std::llround(scale * value.get<double>()));
  return kSuccess;
}

inline int copy(const Json& text, char* to, unsigned length) {
  if (text.is_null()) return kNotSupported;
  std::strncpy(to, text.get<std::string>().c_str(), length);
  to[length - 1] = '\0';
  return kSuccess;
}

inline int answer_text(const char* function, Device device, const char* key, char* to,
                       unsigned length) {
  if (const int error = spoilt(gpu_of(device).fake, function)) return error;
  return copy(gpu_of(device).values.value(key, Json()), to, length);
}

/// The place of a text among those that a number stands for.
inline int answer_word(const char* function, Device device, const char* key,
                       const std::vector<std::string>& words, unsigned* to) {
  if (const int error = spoilt(gpu_of(device).fake, function)) return error;
  const Json value = gpu_of(device).values.value(key, Json());
  if (value.is_null()) return kNotSupported;
  const auto word = value.get<std::string>();
  for (*to = 0; *to < words.size() && words[*to] != word; ++*to) continue;
  return kSuccess;
}

inline const std::vector<std::string> kActions{
    "none", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain"};

inline Json link_of(Gpu& gpu, unsigned link) {
  for (const Json& known : gpu.values.value("nvlinks", Json::array()))
    if (known.value("link", ~0U) == link) return known;
  return Json::object();
}

/// The value of a field, or null.
inline Json field_of(Gpu& gpu, const FieldValue& field) {
  const Json link = link_of(gpu, field.scope);
  switch (field.field) {
    case kFieldMemoryTemperature: return value_of(gpu, "memory_temperature_c");
    case kFieldNvlinkCount: return value_of(gpu, "nvlink_count");
    case kFieldPcieReplays: return value_of(gpu, "pcie_replays");
    case kFieldNvlinkReplays: return link.value("replay_errors", Json());
    case kFieldNvlinkRecoveries: return link.value("recovery_errors", Json());
    case kFieldNvlinkCrcErrors: return link.value("crc_errors", Json());
    case kFieldNvlinkEffectiveErrors: return gpu.fake.value("effective_errors", Json());
    case kFieldNvlinkReceiveErrors: return gpu.fake.value("receive_errors", Json());
    case kFieldNvlinkSpeed: return link.value("speed_mbs", Json());
    case kFieldNvlinkState: return link.value("active", Json());
    case kFieldNvlinkSentKib:
    case kFieldNvlinkReceivedKib: {
      const bool sent = field.field == kFieldNvlinkSentKib;
      const Json bytes = value_of(gpu, sent ? "nvlink_sent_bytes" : "nvlink_received_bytes");
      return bytes.is_null() ? bytes : Json(bytes.get<double>() / 1024);
    }
    case kFieldRecoveryAction: {
      unsigned action = 0;
      const int status = answer_word("", &gpu, "recovery_action", kActions, &action);
      return status == kSuccess ? Json(action) : Json();
    }
    default: return {};
  }
}

}  // namespace fake_nvml
