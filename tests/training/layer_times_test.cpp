#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "training/measure/layer_times.hpp"

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "training/measure/layer_times.hpp"
#include "training/measure/records.hpp"

namespace shakedown::training {
namespace {

/// 100 bytes or 1000 FLOP an ms.
constexpr Roofs kRoofs{100e-6, 0, 1000e-9, 0};

const ParameterTable& table() {
  static const ParameterTable made(layers_of(find_architecture("resnet18")), 10, 3);
  return made;
}

TimedWork timed(const char* kernel, const char* parameter, Phase phase, double bytes, double flop,
                double ms) {
  const int index = *parameter == '\0' ? -1 : table().parameter(parameter);
  return {{kernel, index, bytes, flop}, phase, ms};
}

/// One step: an input, conv1 forward and backward, a shortcut's convolution, an update.
std::vector<TimedWork> step() {
  return {timed("normalise_images", "", Phase::input, 50, 0, 1),
          timed("conv_forward", "conv1.weight", Phase::forward, 100, 3000, 4),
          timed("relu", "conv1.weight", Phase::forward, 100, 0, 2),
          timed("conv_forward", "layer2.0.downsample.0.weight", Phase::forward, 200, 1000, 5),
          timed("relu", "layer2.0.downsample.0.weight", Phase::forward, 300, 0, 4),
          timed("relu", "conv1.weight", Phase::backward, 100, 0, 2.5),
          timed("conv_backward", "conv1.weight", Phase::backward, 200, 2000, 8),
          timed("sgd", "", Phase::update, 400, 0, 5)};
}

const LayerTime& named(const std::vector<LayerTime>& layers, std::string_view name) {
  for (const LayerTime& layer : layers)
    if (layer.layer == name) return layer;
  throw InternalError("no layer " + std::string(name));
}

}  // namespace

TEST_CASE("layers are named as torchvision's, in the order of the step", "[layers]") {
  const std::vector<LayerTime> layers = layer_times(step(), table(), kRoofs);
  std::vector<std::string> names;
  for (const LayerTime& layer : layers) names.push_back(layer.layer);
  CHECK(names == std::vector<std::string>{"input", "conv1", "layer2.0.downsample.0", "optimizer"});
}

TEST_CASE("a layer is the sum of its calls, forward and backward separately", "[layers]") {
  const std::vector<LayerTime> layers = layer_times(step(), table(), kRoofs);
  const LayerTime& conv1 = named(layers, "conv1");
  CHECK(conv1.sum.calls == 4);
  CHECK(conv1.forward_ms == 6);
  CHECK(conv1.backward_ms == 10.5);
  CHECK(conv1.sum.ms == 16.5);
  CHECK(conv1.sum.bytes == 500);
  CHECK(conv1.sum.flop == 5000);
  CHECK(conv1.sum.tflops() == Approx(5000 / 16.5e-3 / 1e12));
  CHECK(conv1.sum.gbs() == Approx(500 / 16.5e-3 / 1e9));
  const LayerTime& optimizer = named(layers, "optimizer");
  CHECK(optimizer.forward_ms == 0);
  CHECK(optimizer.backward_ms == 0);
  CHECK(optimizer.sum.ms == 5);
  double all = 0;
  for (const LayerTime& layer : layers) all += layer.sum.ms;
  CHECK(all == 31.5);
}

TEST_CASE("a layer stands under the roof that holds most of its calls' least time", "[layers]") {
  const std::vector<LayerTime> layers = layer_times(step(), table(), kRoofs);
  // convolutions 3 and 2 ms by FLOP, 1 and 2 by bytes (as long: memory); two passes of 1 ms
  const WorkSum& conv1 = named(layers, "conv1").sum;
  CHECK(conv1.compute_roof_ms == Approx(3));
  CHECK(conv1.memory_roof_ms == Approx(2 + 1 + 1));
  CHECK(conv1.roof() == std::string("memory"));
  CHECK(conv1.roof_share() == Approx(7.0 / 16.5));
  WorkSum twice = conv1;
  twice.add({{"conv_forward", 0, 100, 2000}, Phase::forward, 2}, kRoofs);
  CHECK(twice.roof() == std::string("compute"));
  CHECK(twice.roof_ms() == Approx(9));
}

TEST_CASE("kernels by name and size, the most time first", "[layers]") {
  const std::vector<KernelTime> kernels = kernel_times(step(), kRoofs);
  REQUIRE(kernels.size() == 7);
  CHECK(kernels[0].kernel == "conv_backward");
  CHECK(kernels[1].kernel == "conv_forward");
  CHECK(kernels[1].bytes_per_call == 200);
  CHECK(kernels[2].kernel == "sgd");  // as long; the step comes to it later
  CHECK(kernels[3].kernel == "relu");
  CHECK(kernels[3].bytes_per_call == 100);
  CHECK(kernels[3].sum.calls == 2);
  CHECK(kernels[3].sum.ms == 4.5);
  CHECK(kernels.back().kernel == "normalise_images");
}

TEST_CASE("a call's time is its median over the steps", "[layers]") {
  std::vector<TimedWork> log;
  for (double factor : {1.0, 9.0, 2.0})
    for (TimedWork work : step()) {
      work.ms *= factor;
      log.push_back(work);
    }
  log[0].ms = 100;  // of the input: 100, 9, 2
  const std::vector<TimedWork> median = median_step(log, 3);
  REQUIRE(median.size() == step().size());
  CHECK(median[0].ms == 9);
  CHECK(median[1].ms == 8);
  CHECK(median[7].ms == 10);
  CHECK(median_sum_ms(log, 3) == 130.5);  // and 283.5, 63
}

TEST_CASE("steps whose calls differ have no median", "[layers]") {
  std::vector<TimedWork> log = step();
  for (const TimedWork& work : step()) log.push_back(work);
  CHECK_NOTHROW(median_step(log, 2));
  CHECK_THROWS_AS(median_step(log, 3), InternalError);
  log[9].work.bytes += 1;
  CHECK_THROWS_AS(median_step(log, 2), InternalError);
  CHECK_THROWS_AS(median_step({}, 1), InternalError);
}

TEST_CASE("records have every layer and kernel, and the account of the step", "[layers]") {
  const StepCalls calls{step(), 3, 40, 44, 33, kRoofs, "the exchange"};
  const std::vector<LayerTime> layers = layer_times(calls.calls, table(), kRoofs);
  REQUIRE(layers.size() == 4);
  const Json conv1 = record_of(layers[1], calls);
  CHECK(conv1.at("layer") == "conv1");
  CHECK(conv1.at("step_share") == Approx(16.5 / 40));
  CHECK(conv1.at("backward_ms") == 10.5);
  CHECK_FALSE(record_of(layers[0], calls).contains("forward_ms"));  // input
  CHECK(kernel_times(calls.calls, kRoofs).size() == 7);

  CHECK(conv1.at("rest") == "the exchange");
  CHECK(conv1.at("copy_bytes") == kRoofs.copy_bytes);
}

}  // namespace shakedown::training
