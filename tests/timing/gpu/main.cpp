// kernels [NAME...]: lists the kernels, or runs those named, each alone.
#include <fmt/format.h>

#include <algorithm>

#include "common/backend.hpp"
#include "common/error.hpp"
#include "common/program.hpp"
#include "common/statistics.hpp"
#include "tests/support.hpp"
#include "tests/timing/gpu/lab.hpp"

namespace shakedown::timing {
namespace {

struct Options {
  std::vector<std::string> names;
  int batch = 256;
  std::string precision = "fp16";
};

/// The largest relative error of an output, each in the Euclidean norm.
double error_of(const Bench& bench) {
  ENSURE(bench.ways.size() > 1 && bench.ways[1].run, "a kernel with a reference");
  bench.ways.front().run();
  const std::vector<Values> made = bench.outputs();
  bench.ways[1].run();
  const std::vector<Values> expected = bench.outputs();
  double error = 0;
  for (std::size_t i = 0; i < made.size(); ++i)
    error = std::max(error, test::relative_error(made[i], expected.at(i)));
  return error;
}

void print_times(Lab& lab, const Bench& bench, const Roofs& roofs) {
  const auto all = lab.times_us(bench.ways);
  const double own = median_of(all.front());
  for (std::size_t i = 0; i < bench.ways.size(); ++i) {
    if (all[i].empty()) continue;
    const auto [low, high] = std::minmax_element(all[i].begin(), all[i].end());
    const double us = median_of(all[i]);
    std::string rates;
    if (i > 0) {
      rates = fmt::format("{:.2f} times", us / own);
    } else {
      const double gbs = bench.bytes / us / 1e3, tflops = bench.flop / us / 1e6;
      if (bench.bytes > 0)
        rates += fmt::format("{:.0f} GB/s, {:.0f} % of a copy", gbs, 100 * gbs / roofs.copy_gbs);
      if (bench.flop > 0)
        rates += fmt::format("; {:.1f} TFLOP/s, {:.0f} % of a product", tflops,
                             100 * tflops / roofs.matrix_tflops);
    }
    fmt::print("  {:9.1f} us ({:.1f} to {:.1f})  {}: {}\n", us, *low, *high, bench.ways[i].name,
               rates);
  }
}

/// Whether it ran, and with what error.
ExitCode run(Lab& lab, const Kernel& kernel, const std::function<Bench(Lab&)>& make,
             const Roofs& roofs) {
  const Bench bench = make(lab);
  if (!bench.ways.front().run) {
    fmt::print("{}  {}: not on this GPU in this precision\n", kernel.name, bench.shape);
    return ExitCode::inconclusive;
  }
  const double bound = bench.roundings * (lab.type == DataType::float16 ? 0x1p-11 : 0x1p-8);
  const double error = error_of(bench);
  const bool wrong = !(error <= bound);
  fmt::print("{}  {}  {}: error {:.1e} of {}, {} {:.1e}\n", kernel.name, bench.shape,
             name_of(lab.precision), error, bench.ways[1].name, wrong ? "ABOVE" : "bound", bound);
  print_times(lab, bench, roofs);
  std::fflush(stdout);
  return wrong ? ExitCode::fail : ExitCode::pass;
}

ExitCode run_kernels(const Options& options) {
  const std::vector<Kernel> kernels = all_kernels();
  if (options.names.empty()) {
    for (const Kernel& kernel : kernels) fmt::print("{:32} {}\n", kernel.name, kernel.what);
    return ExitCode::pass;
  }
  const bool everything = options.names == std::vector<std::string>{"all"};
  for (const std::string& name : options.names)
    if (!everything && std::none_of(kernels.begin(), kernels.end(),
                                    [&](const Kernel& kernel) { return kernel.name == name; }))
      throw UsageError(fmt::format("no kernel '{}': without a name all of them are listed", name));
  std::string problem;
  if (gpu::visible_devices(problem).empty())
    throw InconclusiveError(fmt::format("no GPU is visible ({}): kernels run on one", problem));
  const auto device = gpu::make_device(0, /*timeout_s=*/60);
  Lab lab(*device, parse_precision(options.precision, BackendKind::gpu), options.batch);
  const Roofs roofs = measure_roofs(*device, *lab.stream, lab.blas, lab.precision);
  fmt::print(
      "{}: a copy {:.0f} GB/s, a product {:.0f} TFLOP/s; times: median, lowest and highest "
      "of {} turns of {} calls\n",
      device->identity().model, roofs.copy_gbs, roofs.matrix_tflops, Lab::kTurns, Lab::kCalls);
  bool failed = false, ran = false;
  for (const Kernel& kernel : kernels)
    for (const auto& make : kernel.shapes) {
      if (!everything &&
          std::find(options.names.begin(), options.names.end(), kernel.name) == options.names.end())
        continue;
      const ExitCode code = run(lab, kernel, make, roofs);
      failed = failed || code == ExitCode::fail;
      ran = ran || code != ExitCode::inconclusive;
      lab.clear();
    }
  return failed ? ExitCode::fail : ran ? ExitCode::pass : ExitCode::inconclusive;
}

}  // namespace
}  // namespace shakedown::timing

int main(int argc, char** argv) {
  using namespace shakedown;
  timing::Options options;
  OptionSet set("kernels",
                "Runs single kernels at ResNet-50's shapes: the error against a reference, the "
                "time, and that of what the kernel replaces. Without a NAME they are listed; `all` "
                "runs all.");
  set.take_operands("NAME...", options.names);
  set.add("--batch-size,--batch", options.batch, "images").at_least(1);
  set.add("--precision", options.precision, "of activations").one_of({"fp16", "bf16"});
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_alone([&] { return timing::run_kernels(options); });
}
