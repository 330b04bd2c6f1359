// The probes as a load: every kind in turn on all processors, the wrong ones named and tried again.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "launch/node/soak/load.hpp"
#include "launch/node/soak/other_gpus.hpp"
#include "launch/node/soak/sm_probe.hpp"

namespace shakedown::node {

struct ProbeSettings {
  double probe_ms = 10;  // that one probe takes, about
  int retrials = 100;    // of a probe that was wrong
};

class ProbeLoad : public Load {
 public:
  /// `elsewhere` has its results at other addresses.
  ProbeLoad(Device& device, const LoadSettings& load, const ProbeSettings& settings,
            std::unique_ptr<Probe> probe, std::unique_ptr<Probe> elsewhere);

  const std::string& name() const override { return name_; }
  /// An operation is one probe on one processor. A processor that no probe of a call got to is
  /// reported as inconclusive.
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  /// The first wrong probe of the call, on two other GPUs.
  LoadCount confer(const MpiSession& jurors, std::vector<Mismatch>& found) override;
  std::string summary() const override;

 private:
  /// What a processor has done.
  struct Work {
    std::uint64_t probes = 0;
    double relative_ms = 0;  // the sum of its times, each divided by the median of all processors
  };

  void probe_once(LoadCount& count, std::vector<Mismatch>& found, std::vector<int>& unreached);
  void note_times(ProbeKind kind, std::span<const ProbeAnswer> answers);
  Mismatch describe(const ProbeTask& task, const WrongProcessor& wrong, const ProbeRuling& ruling,
                    std::size_t index);
  Attempts attempt(const std::string& task);
  Mismatch inconclusive(const std::string& cause) const;

  std::string name_ = "probe";
  Device& device_;
  LoadSettings load_;
  ProbeSettings settings_;
  std::unique_ptr<Probe> probe_, elsewhere_;
  std::unique_ptr<Stream> stream_;
  std::vector<ProbeKind> kinds_;
  std::map<ProbeKind, int> steps_;
  std::map<int, Work> work_;  // by processor
  std::string unit_;          // "SM" or "core"
  std::uint64_t operations_ = 0;
  std::optional<PlacedError> placed_;  // the first of this call
};

/// With the fault where load.fault says so: the last processor's hash.
std::unique_ptr<ProbeLoad> make_probe_load(Device& device, const LoadSettings& load,
                                           const ProbeSettings& settings);

}  // namespace shakedown::node
