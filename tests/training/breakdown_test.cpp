// What is measured of steps: their parts, their layers, their throughput.
#include "training/measure/breakdown.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/error.hpp"
#include "common/nvml.hpp"
#include "tests/catch.hpp"
#include "training/measure/layer_times.hpp"
#include "training/measure/records.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/describe.hpp"

namespace shakedown::training {
namespace {

/// One step of a network of two blocks, from `at` on: input 1 ms, forward 2 and 3, backward of
/// block 1 4 and of block 0 `backward_0`, then `exposed` ms of waiting and 2 of updating.
TracedStep step(double at, double backward_0, double exposed, std::vector<Exchanged> exchanges) {
  TracedStep s;
  s.begin_ms = at;
  const auto add = [&](Phase phase, int block, double ms) {
    s.segments.push_back({phase, block, at, at + ms});
    at += ms;
  };
  add(Phase::input, -1, 1);
  add(Phase::forward, 0, 2);
  add(Phase::forward, 1, 3);
  add(Phase::backward, 1, 4);
  add(Phase::backward, 0, backward_0);
  add(Phase::exchange, -1, exposed);
  add(Phase::update, -1, 2);
  s.end_ms = at;
  s.exchanges = std::move(exchanges);
  return s;
}

Exchanged exchange(double ready, double begin, double end) {
  return {"all_reduce", 100, ready, ready - 20, begin, end};
}

Trace trace_of(std::vector<TracedStep> steps) { return {{true, std::move(steps)}}; }

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

TEST_CASE("A step is the sum of its parts, interference separately", "[breakdown]") {
  const Trace none = trace_of({step(0, 5, 0, {}), step(17, 5, 0, {})});
  // Bucket 0 runs while block 0 computes, which takes 6 instead of 5; bucket 1 after it.
  const Trace ddp =
      trace_of({step(100, 6, 1.5, {exchange(110, 110, 114), exchange(116, 116, 117.5)})});
  const Breakdown b = break_down(ddp, &none);
  CHECK(b.step_ms == 19.5);
  CHECK(b.compute_ms == 14);
  CHECK(b.exposed_comm_ms == 1.5);
  CHECK(b.input_stall_ms == 1);
  CHECK(b.optimizer_ms == 2);
  CHECK(b.hidden_comm_ms == 4);
  CHECK(b.comm_ms == 5.5);
  CHECK(*b.interference_ms == 1);
  CHECK(b.slowdown == 0.2);
  CHECK(b.residual_ms() == 0);
}

TEST_CASE("What slows blocks down that meet no exchange is left over", "[breakdown]") {
  const Trace none = trace_of({step(0, 5, 0, {})});
  const Breakdown b = break_down(trace_of({step(0, 8, 1, {exchange(18, 18, 19)})}), &none);
  CHECK(*b.interference_ms == 0);
  CHECK(b.slowdown == 0);
  CHECK(b.residual_ms() == 3);
}

TEST_CASE("Without a baseline computing is a trace's own", "[breakdown]") {
  const Breakdown b = break_down(trace_of({step(0, 8, 1, {exchange(10, 10, 19)})}), nullptr);
  CHECK(b.compute_ms == 17);
  CHECK_FALSE(b.interference_ms.has_value());
  CHECK(b.residual_ms() == 0);
}

TEST_CASE("Medians over steps, averages over the ranks that compute", "[breakdown]") {
  Trace trace = trace_of({step(0, 5, 0, {}), step(17, 7, 0, {}), step(36, 50, 0, {})});
  trace.push_back({true, {step(0, 9, 0, {})}});
  trace.push_back({false, {}});  // a server
  CHECK(step_ms(trace) == 20);
  CHECK(break_down(trace, nullptr).compute_ms == 17);
}

TEST_CASE("The rank that comes last waits for nobody", "[breakdown]") {
  // Rank 1 computes for 3 ms longer: rank 0's exchange is as much longer.
  Trace trace = trace_of({step(100, 6, 5, {exchange(116, 116, 121)})});
  trace.push_back({true, {step(100, 9, 2, {exchange(119, 119, 121)})}});
  const auto times = exchange_times(trace);
  REQUIRE(times.size() == 1);
  REQUIRE(times[0].waiting.has_value());
  CHECK(times[0].waiting->ms == 1.5);  // 3 and 0
  CHECK(times[0].waiting->straggler == 1);
  CHECK(times[0].waiting->share == 1);
  CHECK(times[0].ready_ms == 17.5);
  CHECK(times[0].launch_ms == -2.5);
  CHECK(times[0].start_ms == 17.5);
  CHECK(times[0].end_ms == 21);
  CHECK(times[0].exposed_ms == 3.5);
  CHECK(times[0].hidden_ms == 0);
}

TEST_CASE("A server's part of the baseline is left out; a star waits for none", "[breakdown]") {
  Trace none = trace_of({step(0, 50, 0, {})});
  none.push_back({true, {step(0, 5, 0, {})}});
  Exchanged push = exchange(15, 15, 16);
  push.what = "push";
  Trace served = trace_of({});
  served.front().computes = false;
  served.push_back({true, {step(0, 5, 1, {push})}});
  CHECK(break_down(served, &none).compute_ms == 14);
  CHECK_FALSE(exchange_times(served).front().waiting.has_value());
}

TEST_CASE("Exchanges that differ from step to step have no times of their own", "[breakdown]") {
  CHECK(exchange_times(trace_of({step(0, 5, 1, {exchange(15, 15, 16)}), step(18, 5, 0, {})}))
            .empty());
}

TEST_CASE("Sums of the exchanges of one name", "[breakdown]") {
  Exchanged push = exchange(15, 15, 16);
  push.what = "push";
  const Trace trace = trace_of({step(0, 5, 4, {push, push, exchange(17, 17, 19)})});
  CHECK(exchange_ms(trace, "push") == 2.0);
  CHECK_FALSE(exchange_ms(trace, "pull").has_value());
}

TEST_CASE("Gradients are ready when their block's backward ends", "[breakdown]") {
  const BackwardTimes times = backward_times(trace_of({step(100, 6, 0, {})}));
  CHECK(times.ready_ms == std::vector<double>{10, 4});
  CHECK(times.backward_ms == 10);
}

TEST_CASE("layers are named as torchvision's, in the order of the step", "[layers]") {
  const std::vector<LayerTime> layers = layer_times(step(), table(), kRoofs);
  std::vector<std::string> names;
  for (const LayerTime& layer : layers) names.push_back(layer.layer);
  CHECK(names == Texts{"input", "conv1", "layer2.0.downsample.0", "optimizer"});
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

TEST_CASE("NVLink's counters count where every rank's moved", "[throughput]") {
  CHECK(nvlink_counts_all({101, 102}, {100, 100}));
  CHECK(nvlink_counts_all({0, 0}, {0, 0}));      // none exchanges nothing
  CHECK(nvlink_counts_all({3, 100}, {0, 100}));  // a rank that only receives acknowledges
  CHECK_FALSE(nvlink_counts_all({101}, {100}));  // of one rank alone
  CHECK_FALSE(nvlink_counts_all({101, kUnknown}, {100, 100}));
  CHECK_FALSE(nvlink_counts_all({101, 0}, {100, 100}));  // by PCIe or the host
}

TEST_CASE("a loss that is no number, or no step that trained, fails", "[throughput]") {
  const auto step = [](double loss, int skipped) {
    Throughput measured;
    measured.loss_first = 7;
    measured.loss_last = loss;
    measured.iterations = 4;
    measured.skipped_timed_steps = skipped;
    return measured;
  };
  CHECK_NOTHROW(check_trained(step(6, 3)));
  CHECK_THROWS_AS(check_trained(step(6, 4)), FailError);
  CHECK_THROWS_AS(check_trained(step(NAN, 0)), FailError);
}

TEST_CASE("warm-up goes on until its time is over", "[throughput]") {
  CHECK(steps_to_fill(2, 2, 10) == 0);
  CHECK(steps_to_fill(0, 0.1, 10) == 0);
  CHECK(steps_to_fill(2, 0.5, 10) == 30);
  CHECK(steps_to_fill(2, 1.99, 10) == 1);
  CHECK(steps_to_fill(2, 0, 0) == 1);  // nothing is known of a step's time
}

TEST_CASE("ranks are counted with their nodes", "[throughput]") {
  CHECK(text_of_ranks({"a"}) == "1 rank on 1 node (a)");
  CHECK(text_of_ranks({"b", "b", "a"}) == "3 ranks on 2 nodes (b, a)");
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back("n" + std::to_string(i));
  CHECK_THAT(text_of_ranks(many),
             ContainsSubstring("20 nodes (n0, ") && ContainsSubstring("n7 and 12 more)"));
}

}  // namespace shakedown::training
