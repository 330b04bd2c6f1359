#include "training/measure/layer_times.hpp"

#include <algorithm>
#include <string_view>

#include "common/ensure.hpp"
#include "common/statistics.hpp"

namespace shakedown::training {
namespace {

bool alike(const TimedWork& a, const TimedWork& b) {
  return std::string_view(a.work.kernel) == b.work.kernel && a.work.parameter == b.work.parameter &&
         a.phase == b.phase && a.work.bytes == b.work.bytes && a.work.flop == b.work.flop;
}

std::size_t calls_a_step(const std::vector<TimedWork>& works, int steps) {
  const auto count = static_cast<std::size_t>(steps);
  ENSURE(count > 0 && !works.empty() && works.size() % count == 0, "calls of steps that differ");
  return works.size() / count;
}

std::string layer_of(const TimedWork& timed, const ParameterTable& table) {
  if (timed.phase == Phase::input) return "input";
  if (timed.phase == Phase::update) return "optimizer";
  const std::string& name =
      table.parameters().at(static_cast<std::size_t>(timed.work.parameter)).name;
  return name.substr(0, name.find_last_of('.'));
}

void sort_by_time(std::vector<KernelTime>& kernels) {
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.sum.ms > b.sum.ms; });
}

/// The first that `matches`, or `fresh` appended.
template <class T, class Matches>
T& found_or_added(std::vector<T>& all, const T& fresh, Matches&& matches) {
  const auto known = std::find_if(all.begin(), all.end(), matches);
  return known != all.end() ? *known : all.emplace_back(fresh);
}

}  // namespace

std::vector<TimedWork> median_step(const std::vector<TimedWork>& works, int steps) {
  const std::size_t calls = calls_a_step(works, steps);
  std::vector<TimedWork> step(works.begin(), works.begin() + static_cast<std::ptrdiff_t>(calls));
  for (std::size_t i = 0; i < calls; ++i) {
    std::vector<double> ms;
    for (std::size_t at = i; at < works.size(); at += calls) {
      ENSURE(alike(works[at], works[i]), "calls of steps that differ");
      ms.push_back(works[at].ms);
    }
    step[i].ms = median_of(ms);
  }
  return step;
}

double median_sum_ms(const std::vector<TimedWork>& works, int steps) {
  const std::size_t calls = calls_a_step(works, steps);
  std::vector<double> sums(static_cast<std::size_t>(steps));
  for (std::size_t i = 0; i < works.size(); ++i) sums[i / calls] += works[i].ms;
  return median_of(sums);
}

void WorkSum::add(const TimedWork& timed, const Roofs& roofs) {
  ++calls;
  ms += timed.ms;
  flop += timed.work.flop;
  bytes += timed.work.bytes;
  const double compute_ms = timed.work.flop / roofs.matrix_tflops / 1e9;
  const double memory_ms = timed.work.bytes / roofs.copy_gbs / 1e6;
  (compute_ms > memory_ms ? compute_roof_ms : memory_roof_ms) += std::max(compute_ms, memory_ms);
}

std::vector<LayerTime> layer_times(const std::vector<TimedWork>& step, const ParameterTable& table,
                                   const Roofs& roofs) {
  std::vector<LayerTime> layers;
  for (const TimedWork& timed : step) {
    const std::string name = layer_of(timed, table);
    LayerTime& layer = found_or_added(layers, LayerTime{name, {}, 0, 0},
                                      [&](const LayerTime& l) { return l.layer == name; });
    layer.sum.add(timed, roofs);
    if (timed.phase == Phase::forward) layer.forward_ms += timed.ms;
    if (timed.phase == Phase::backward) layer.backward_ms += timed.ms;
  }
  return layers;
}

std::vector<KernelTime> kernel_times(const std::vector<TimedWork>& step, const Roofs& roofs) {
  std::vector<KernelTime> kernels;
  for (const TimedWork& timed : step) {
    const Work& work = timed.work;
    found_or_added(kernels, KernelTime{work.kernel, work.bytes, work.flop, {}},
                   [&](const KernelTime& k) {
                     return k.kernel == work.kernel && k.bytes_per_call == work.bytes &&
                            k.flop_per_call == work.flop;
                   })
        .sum.add(timed, roofs);
  }
  sort_by_time(kernels);
  return kernels;
}

}  // namespace shakedown::training
