// Reads the GPUs of this host again and again. A GPU whose call has not returned is not called
// again until it has: no reading waits for it twice.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/nvml_library.hpp"
#include "common/watch.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

class GpuReader {
 public:
  /// Opens NVML. Where that fails every reading says why. `deadline_s`: of each call; `whole_s`: of
  /// all that this reader ever does, four fifths of it for opening NVML, which is slow where
  /// the driver has to initialize its GPUs first.
  GpuReader(double deadline_s, const std::string& library, double whole_s = INFINITY);
  /// A library that is loaded already, of which every function is found by `find`.
  GpuReader(double deadline_s, const nvml::FindFunction& find);
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  /// What does not change: the versions, or why there are no GPUs to read.
  const HostGpus& host() const;
  /// All GPUs at the same time. Takes the longest of their times, which is the deadline above that
  /// of the other GPUs where one's call newly does not return.
  HostGpus read(bool inforom = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where it `stalls` (--inject-fault stall), the call that reads a GPU's power never returns.
std::unique_ptr<GpuReader> open_reader(double deadline_s, bool stalls,
                                       const std::string& library = nvml::library_name());

/// Makes the driver's calls for a sequence of them, which ends by GivenUp at one that is late: what
/// it uses must be its own until then, however long that is.
class Caller {
 public:
  using Clock = CallWatch::Clock;
  struct GivenUp {};
  /// How long calls may take.
  struct Limits {
    double call_s = 5;                                 // one of them
    Clock::time_point end = Clock::time_point::max();  // when the last must have returned
  };

  /// `late` runs while the named call has still not returned, in another thread.
  Caller(const Limits& limits, std::function<void(const char* call)> late)
      : watch_(
            limits.call_s, [this, late = std::move(late)] { late(call_); }, limits.end) {}

  /// The function's status; kFunctionNotFound where the library lacks it.
  template <class... Parameters, class... Arguments>
  int operator()(const nvml::Function<int(Parameters...)>& function, Arguments... arguments) {
    call_ = function.name;
    int status = 0;
    watch_.during([&] { status = nvml::call(function, arguments...); });
    if (watch_.was_late()) throw GivenUp();
    return status;
  }

 private:
  const char* call_ = nullptr;
  CallWatch watch_;
};

/// Notes an error of a call under its name; not that a driver or a GPU does not have what was
/// requested.
void note_failure(const nvml::Library& library, const std::string& function, int status,
                  std::vector<std::string>& failed);

/// The sequence of calls that fills a reading whose index is given. Up to a call that does not
/// return the reading is complete. `inforom`: also verifies its checksums, which reads the GPU's
/// flash.
void read_gpu(const nvml::Library& library, Caller& call, GpuReading& reading, bool inforom);

}  // namespace shakedown::node
