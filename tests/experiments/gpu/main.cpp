// experiments [products] [memory] [gram] [--size N] [--bytes N] [--batch N] [--seconds S] [--turns
// N] Without names products and memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/backend.hpp"
#include "common/nvml.hpp"
#include "common/statistics.hpp"
#include "tests/experiments/gpu/experiment.hpp"

namespace shakedown::experiments {
namespace {

/// Milliseconds of all runs; 0 where it is refused.
double time_ms(const Bench& bench, const Variant& variant, int runs) {
  const auto start = bench.device.make_event();
  const auto end = bench.device.make_event();
  start->record(bench.stream);
  for (int run = 0; run < runs; ++run)
    if (!variant.run()) return 0;
  end->record(bench.stream);
  end->synchronize();
  return end->milliseconds_since(*start);
}

struct Timed {
  int runs = 0;  // per turn; 0: refused
  std::vector<double> rates, clocks;
};

void time_turn(const Bench& bench, const Variant& variant, double unit, Timed& timed) {
  GpuSampler sampler(bench.nvml, bench.uuid);
  const double ms = time_ms(bench, variant, timed.runs);
  timed.rates.push_back(variant.work * timed.runs / ms * 1e3 / unit);
  timed.clocks.push_back(sampler.finish().sm_clock_mhz);
}

}  // namespace

void compare(const Bench& bench, const std::string& title, double unit,
             const std::vector<Variant>& variants) {
  std::vector<Timed> timed(variants.size());
  for (std::size_t i = 0; i < variants.size(); ++i)
    if (time_ms(bench, variants[i], 1) > 0)  // which loads the kernel
      timed[i].runs = std::max(1, static_cast<int>(1e3 * bench.seconds /
                                                   std::max(time_ms(bench, variants[i], 1), 1e-3)));
  const auto first =
      std::find_if(timed.begin(), timed.end(), [](const Timed& one) { return one.runs > 0; });
  if (first == timed.end()) return;
  const Variant& warm = variants[static_cast<std::size_t>(first - timed.begin())];
  time_ms(bench, warm, static_cast<int>(0.5 * first->runs / bench.seconds) + 1);
  for (int turn = 0; turn < bench.turns; ++turn)
    for (std::size_t i = 0; i < variants.size(); ++i)
      if (timed[i].runs > 0) time_turn(bench, variants[i], unit, timed[i]);
  const double base = median_of(first->rates);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (timed[i].runs == 0) {
      fmt::print("{:14} {:>8}{:38}  {}\n", title, "refused", "", variants[i].name);
      continue;
    }
    const auto [low, high] = std::minmax_element(timed[i].rates.begin(), timed[i].rates.end());
    const double rate = median_of(timed[i].rates);
    const double clock = median_of(timed[i].clocks);
    fmt::print("{:14} {:8.1f} {:8.1f} {:8.1f} {:5.0f} MHz {:6.1f}/GHz {:6.3f}  {}\n", title, rate,
               *low, *high, clock, rate / clock * 1e3, rate / base, variants[i].name);
  }
  std::fflush(stdout);
}

}  // namespace shakedown::experiments

int main(int argc, char** argv) {
  using namespace shakedown;
  bool products = false;
  bool memory = false;
  bool gram = false;
  int size = 8192;
  int batch = 256;
  std::size_t bytes = std::size_t{1} << 30;
  const auto device = gpu::make_device(0, /*timeout_s=*/20);
  const auto stream = device->make_stream();
  experiments::Bench bench{*device, *stream, Nvml::open(), device->identity().uuid};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "0";
    if (word == "products") products = true;
    if (word == "memory") memory = true;
    if (word == "gram") gram = true;
    if (word == "--batch") batch = std::atoi(value);
    if (word == "--size") size = std::atoi(value);
    if (word == "--bytes") bytes = std::strtoull(value, nullptr, 10);
    if (word == "--seconds") bench.seconds = std::atof(value);
    if (word == "--turns") bench.turns = std::atoi(value);
  }
  if (gram) {
    fmt::print("{}\n", device->identity().model);
    experiments::gram(bench, batch);
  }
  if (gram && !products && !memory) return 0;
  fmt::print(
      "{}; median, lowest, highest of {} turns of {} s; TFLOP/s and GB/s; ratio to the "
      "first line of its group\n",
      device->identity().model, bench.turns, bench.seconds);
  if (products || !memory) experiments::products(bench, size);
  if (memory || !products) experiments::memory(bench, bytes);
  return 0;
}
