#include "launch/node/soak/sm_probe.hpp"

#include <chrono>

#include "launch/node/soak/cpu/processors.hpp"

namespace shakedown::node::cpu {
namespace {

class CpuProbe final : public Probe {
 public:
  explicit CpuProbe(int cores) : cores_(first_cores(cores)) {}

  std::vector<ProbeKind> kinds() const override {
    return {ProbeKind::integer, ProbeKind::fma_fp32, ProbeKind::fma_fp64};
  }
  std::vector<int> processors() const override { return cores_; }

  std::vector<ProbeAnswer> run(const ProbeTask& task, std::span<const int> processors,
                               Stream&) override {
    std::vector<ProbeAnswer> all(processors.size());
    const auto done = run_on_cores(processors, [&](std::size_t i) {
      all[i].processor = processors[i];
      const auto begin = std::chrono::steady_clock::now();
      for (int lane = 0; lane < kProbeLanes; ++lane) all[i].hashes.push_back(host_hash(task, lane));
      const std::chrono::duration<double, std::milli> elapsed =
          std::chrono::steady_clock::now() - begin;
      all[i].ms = elapsed.count();
    });
    std::vector<ProbeAnswer> answers;
    for (const std::size_t i : done) answers.push_back(std::move(all[i]));
    return answers;
  }

 private:
  std::vector<int> cores_;
};

}  // namespace

std::unique_ptr<Probe> make_probe(Device& device) {
  return std::make_unique<CpuProbe>(device.identity().compute_threads);
}

}  // namespace shakedown::node::cpu
