#include "training/measure/layer_tables.hpp"

#include <fmt/format.h>

#include "common/text_table.hpp"
#include "common/types.hpp"

namespace shakedown::training {
namespace {

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string or_blank(bool there, const std::string& text) { return there ? text : ""; }

WorkSum sum_of(const StepCalls& step) {
  WorkSum sum;
  for (const TimedWork& timed : step.calls) sum.add(timed, step.roofs);
  return sum;
}

std::string layer_row(const std::vector<Column>& columns, const LayerTime& layer,
                      const StepCalls& step) {
  const WorkSum& sum = layer.sum;
  const bool network = layer.is_of_network();
  return row(columns,
             {layer.layer, fixed(sum.ms, 3), or_blank(network, fixed(layer.forward_ms, 3)),
              or_blank(network, fixed(layer.backward_ms, 3)), percent(sum.ms / step.step_ms),
              or_blank(sum.flop > 0, fixed(sum.tflops(), 2)), fixed(sum.gbs(), 0),
              fixed(sum.roof_ms(), 3), percent(sum.roof_share()), sum.roof()});
}

std::string kernel_row(const std::vector<Column>& columns, const KernelTime& kernel,
                       const StepCalls& step, bool one_size) {
  const WorkSum& sum = kernel.sum;
  std::vector<std::string> cells{kernel.kernel};
  if (one_size) cells.push_back(readable_bytes(kernel.bytes_per_call));
  for (const std::string& cell :
       {fmt::format("{}", sum.calls), fixed(sum.ms, 3), fixed(1e3 * sum.ms / sum.calls, 1),
        percent(sum.ms / step.step_ms), fixed(sum.gbs(), 0),
        percent(sum.gbs() / step.roofs.copy_gbs)})
    cells.push_back(cell);
  if (!one_size) cells.push_back(or_blank(sum.flop > 0, fixed(sum.tflops(), 2)));
  return row(columns, cells);
}

}  // namespace

std::string text_of_roofs(const StepCalls& step, const std::string& precision) {
  const Roofs& roofs = step.roofs;
  return fmt::format(
      "roofs     {:.1f} GB/s: a copy of {} within the device's memory, read and written\n"
      "          {:.3g} TFLOP/s: a product of {} x {} matrices in {}\n",
      roofs.copy_gbs, readable_bytes(static_cast<double>(roofs.copy_bytes)), roofs.matrix_tflops,
      roofs.matrix_size, roofs.matrix_size, precision);
}

std::string table_of_layers(const StepCalls& step, const ParameterTable& table) {
  const std::vector<Column> columns{
      {"", "layer", 22},     {"", "ms", 9},      {"", "forward", 9}, {"", "backward", 9},
      {"of the", "step", 7}, {"", "TFLOP/s", 8}, {"", "GB/s", 6},    {"roof", "ms", 9},
      {"of the", "roof", 8}, {"", "roof", 8}};
  std::string text = "\nlayers, medians of " + fmt::format("{} steps\n", step.logged_steps);
  text += heading(columns);
  LayerTime all{"sum", {}, 0, 0};
  for (const LayerTime& layer : layer_times(step.calls, table, step.roofs)) {
    text += layer_row(columns, layer, step);
    all.sum.add(layer.sum);
    all.forward_ms += layer.forward_ms;
    all.backward_ms += layer.backward_ms;
  }
  return text + layer_row(columns, all, step) +
         "roof ms: max(FLOP / matrix rate, bytes / copy bandwidth) of each call; roof: the one "
         "that\n"
         "most of it is; of the roof, above 100 %: data came from a cache\n";
}

std::string table_of_kernels(const StepCalls& step) {
  const std::vector<Column> totals{{"", "kernel", 26},    {"calls", "/step", 6}, {"ms", "/step", 9},
                                   {"us", "/call", 9},    {"of the", "step", 7}, {"", "GB/s", 7},
                                   {"of the", "copy", 8}, {"", "TFLOP/s", 8}};
  const std::vector<KernelTime> kernels = kernel_times(step.calls, step.roofs);
  std::string text = fmt::format("\nkernels, medians of {} steps\n", step.logged_steps);
  text += heading(totals);
  for (const KernelTime& kernel : totals_of(kernels))
    text += kernel_row(totals, kernel, step, false);

  std::vector<Column> sizes = totals;
  sizes.insert(sizes.begin() + 1, {"bytes", "/call", 11});
  sizes.pop_back();
  text += "\ncalls without FLOP, by size\n" + heading(sizes);
  for (const KernelTime& kernel : kernels)
    if (kernel.flop_per_call == 0) text += kernel_row(sizes, kernel, step, true);
  return text;
}

std::string account_of(const StepCalls& step, const std::string& rest) {
  const WorkSum sum = sum_of(step);
  const double events_ms = step.logged_step_ms - step.step_ms;
  const std::string events =
      events_ms < 0 ? fmt::format("no slower with events between {} calls", sum.calls)
                    : fmt::format("events between {} calls cost {:.3f} ms ({:.1f} %)", sum.calls,
                                  events_ms, 100 * events_ms / step.step_ms);
  return fmt::format(
      "\nstep      {:.3f} ms without the log; {:.3f} ms with it: {}\n"
      "calls     {:.3f} ms, {:.1f} % of the step without the log; the rest of the step with it, "
      "{:.3f} ms:\n          {}\n"
      "roof      {:.3f} ms, {:.1f} % of the calls' time\n",
      step.step_ms, step.logged_step_ms, events, step.calls_ms, 100 * step.calls_ms / step.step_ms,
      step.logged_step_ms - step.calls_ms, rest, sum.roof_ms(),
      100 * sum.roof_ms() / step.calls_ms);
}

}  // namespace shakedown::training
