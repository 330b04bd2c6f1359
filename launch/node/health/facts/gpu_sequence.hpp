// The sequence of NVML's calls that reads one GPU.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// Notes an error of a call under its name; not that a driver or a GPU does not have what was
/// requested.
void note_failure(const nvml::Library& library, const std::string& function, int status,
                  std::vector<std::string>& failed);

/// Fills a reading whose index is given. Up to a call that does not return the reading is complete.
class GpuSequence {
 public:
  /// `inforom`: also verifies its checksums, which reads the GPU's flash.
  GpuSequence(const nvml::Library& library, Caller& call, GpuReading& reading, bool inforom)
      : library_(library), call_(call), reading_(reading), inforom_(inforom) {}

  void run();

 private:
  void note(const std::string& function, int status) {
    note_failure(library_, function, status, reading_.failed);
  }

  template <class... Parameters, class... Arguments>
  bool reads(const nvml::Function<int(nvml::Device, Parameters...)>& function,
             Arguments... arguments) {
    const int status = call_(function, device_, arguments...);
    note(function.name, status);
    return status == nvml::kSuccess;
  }

  /// The older where the newer does not answer; whose error then does not matter.
  template <class Newer, class Older>
  bool either(Newer&& newer, Older&& older) {
    const std::size_t failed = reading_.failed.size();
    if (newer()) return true;
    if (!older()) return false;
    reading_.failed.resize(failed);
    return true;
  }

  template <class To, class Function, class... Before>
  bool number(Known<To>& to, const Function& function, Before... before) {
    unsigned value = 0;
    if (!reads(function, before..., &value)) return false;
    to = static_cast<To>(value);
    return true;
  }

  bool milliwatts(Known<double>& to, const nvml::Function<int(nvml::Device, unsigned*)>& function) {
    if (!number(to, function)) return false;
    *to /= 1e3;
    return true;
  }

  void text(std::string& to, const nvml::Function<int(nvml::Device, char*, unsigned)>& function) {
    std::array<char, 128> read{};
    if (reads(function, read.data(), static_cast<unsigned>(read.size()))) to = read.data();
  }

  void identity();
  void state();
  void settings();
  void power_and_heat();
  void errors();
  void pcie();
  void fields();
  std::vector<Known<std::uint64_t>> field_values(std::vector<nvml::FieldValue> values);
  void nvlinks(Known<std::uint64_t> count, Known<std::uint64_t> common_speed_mbs);
  bool has_nvlink(unsigned link);
  NvlinkReading nvlink(unsigned link, Known<std::uint64_t> common_speed_mbs);
  void fabric();
  void processes();
  void inforom();

  const nvml::Library& library_;
  Caller& call_;
  GpuReading& reading_;
  bool inforom_;
  nvml::Device device_ = nullptr;
};

}  // namespace shakedown::node
