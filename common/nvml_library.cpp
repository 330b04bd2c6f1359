#include "common/nvml_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

namespace shakedown::nvml {

std::optional<std::uint64_t> count_of(const FieldValue& field) {
  const auto unless_negative = [](long long value) {
    return value < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(value));
  };
  if (field.status != kSuccess) return std::nullopt;
  switch (field.type) {
    case 1: return field.value.narrow;                        // unsigned int
    case 2:                                                   // unsigned long
    case 3: return field.value.wide;                          // unsigned long long
    case 4: return unless_negative(field.value.signed_wide);  // long long
    case 5: return unless_negative(field.value.signed_narrow);
    case 6: return field.value.shortest;  // unsigned short
    default: return std::nullopt;
  }
}

std::string device_id_of(const PciInfo& pci) {
  const auto halves = [](unsigned id) {
    return fmt::format("{:04x}:{:04x}", id & 0xffff, id >> 16);
  };
  if (pci.device_id == 0) return "";
  return halves(pci.device_id) + (pci.subsystem_id == 0 ? "" : ":" + halves(pci.subsystem_id));
}

std::string cluster_of(const FabricInfo& info) {
  const auto hex = fmt::format("{:02x}", fmt::join(info.cluster_uuid, ""));
  return hex.find_first_not_of('0') == std::string::npos ? "" : hex;
}

std::string Library::words_of(int status) const {
  const char* text = error_text.address == nullptr ? nullptr : error_text.address(status);
  return text == nullptr ? fmt::format("error {}", status) : text;
}

std::string library_name() {
  const char* const name = std::getenv("SHAKEDOWN_NVML_LIBRARY");
  return name == nullptr ? "libnvidia-ml.so.1" : name;
}

FindFunction open_library(const std::string& name, std::string& problem) {
  void* const opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (opened == nullptr) {
    const char* const reason = dlerror();
    problem = reason == nullptr ? name + ": cannot be opened" : reason;
    return nullptr;
  }
  return [opened](const char* function) { return dlsym(opened, function); };
}

}  // namespace shakedown::nvml
