// What makes the GPU's step fast, or lean, leaves what it computes as it was.
#include <fmt/format.h>

#include <numeric>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/network.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

const Architecture kSmallBottlenecks{"resnet26", true, {2, 2, 2, 2}};

EngineSettings settings_of(const Architecture& architecture, Precision precision, int size) {
  EngineSettings settings;
  settings.network.architecture = architecture;
  settings.network.batch_size = 32;
  settings.network.image_size = size;
  settings.network.classes = 10;
  settings.network.precision = precision;
  settings.network.tuning.autotune = false;
  settings.strategy.strategy = "none";
  settings.seed = 3;
  return settings;
}

/// A run from the start on one batch: the gradients of its first step, unscaled, and every loss.
struct Run {
  std::vector<Tensor> gradients;
  std::vector<double> losses;
  std::vector<float> weights;
};
Run run(const EngineSettings& settings, int steps, double learning_rate) {
  Backend backend = test::open_backend_of(BackendKind::gpu);
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  const NetworkSettings& n = settings.network;
  const auto size = static_cast<std::size_t>(n.image_size);
  const auto count = static_cast<std::size_t>(n.batch_size);
  const auto images = test::random_values(count * 3 * size * size, 5);
  std::vector<std::int32_t> labels(count);
  std::iota(labels.begin(), labels.end(), 0);
  for (std::int32_t& label : labels) label %= n.classes;

  Run result;
  for (int i = 0; i < steps; ++i) {
    engine.step.run([&](int) { test::set_batch(engine.model.network(), images, labels); },
                    learning_rate);
    engine.finish();
    const Metrics step = engine.model.network().read_metrics().step;
    result.losses.push_back(step.loss_sum / static_cast<double>(step.samples));
    if (i > 0) continue;
    const float scale = scales_loss(n.precision) ? kInitialLossScale : 1.0F;
    result.gradients = test::gradients(engine.model.network());
    for (Tensor& tensor : result.gradients)
      for (float& value : tensor.values) value /= scale;
  }
  result.weights = engine.model.master_weights();
  return result;
}

std::vector<float> flat(const std::vector<Tensor>& tensors) {
  std::vector<float> all;
  for (const Tensor& t : tensors) all.insert(all.end(), t.values.begin(), t.values.end());
  return all;
}

double mean(std::vector<double>::const_iterator begin, std::vector<double>::const_iterator end) {
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

}  // namespace

TEST_CASE("timing what a step is made of leaves its weights as they were", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const Precision precision = GENERATE(Precision::fp32, Precision::fp16);
  auto settings = settings_of(kSmallBottlenecks, precision, 64);
  const auto weights_of_the_first_step = [&](bool autotune) {
    settings.network.tuning.autotune = autotune;
    Backend backend = test::open_backend_of(BackendKind::gpu);
    Engine engine(settings, backend);
    engine.allocate(test::session().local_size());
    const View weights = engine.model.network().weights().compute();
    return download<std::byte>(engine.device(), engine.stream(), weights.data, weights.bytes());
  };
  CHECK(weights_of_the_first_step(true) == weights_of_the_first_step(false));
}

TEST_CASE("activations that are rebuilt are those that were not kept, to the last bit", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const Precision precision = GENERATE(Precision::fp32, Precision::fp16, Precision::bf16);
  const bool bottleneck = GENERATE(false, true);
  CAPTURE(name_of(precision), bottleneck);
  auto settings =
      settings_of(bottleneck ? kSmallBottlenecks : find_architecture("resnet18"), precision, 64);
  settings.network.tuning.deterministic = true;
  settings.network.tuning.fusion = GENERATE(Fusion::none, Fusion::gradients, Fusion::gram);
  const Run kept = run(settings, 3, 0.05);
  settings.network.recompute = true;
  const Run rebuilt = run(settings, 3, 0.05);
  CHECK(flat(rebuilt.gradients) == flat(kept.gradients));
  CHECK(rebuilt.weights == kept.weights);
}

TEST_CASE("timing ways to compute leaves the running statistics as they were", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  auto settings = settings_of(kSmallBottlenecks, Precision::fp16, 64);
  settings.network.tuning.autotune = true;
  Backend backend = test::open_backend_of(BackendKind::gpu);
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  CHECK(engine.model.network().fused().norms == 29);  // 1 + 8 * 3 + 4
  for (const Tensor& tensor : engine.model.state()) {
    CAPTURE(tensor.name);
    if (tensor.name.find("running_mean") != std::string::npos)
      CHECK(tensor.values == std::vector<float>(tensor.values.size(), 0.0F));
    if (tensor.name.find("running_var") != std::string::npos)
      CHECK(tensor.values == std::vector<float>(tensor.values.size(), 1.0F));
  }
}

TEST_CASE("a deterministic ResNet-50 repeats to the last bit", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16, Precision::tf32);
  CAPTURE(name_of(precision));
  auto settings = settings_of(find_architecture("resnet50"), precision, 96);
  settings.network.tuning.deterministic = true;
  const Run once = run(settings, 4, 0.05);
  CHECK(run(settings, 4, 0.05).weights == once.weights);
}

TEST_CASE("deterministic steps repeat, and are then fused again", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  auto settings = settings_of(kSmallBottlenecks, Precision::fp16, 64);
  settings.network.tuning.fusion = Fusion::statistics;
  Backend backend = test::open_backend_of(BackendKind::gpu);
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  CHECK(engine.model.network().fused().statistics == 28);  // all but the stem's
  const auto images = test::random_values(std::size_t{32} * 3 * 64 * 64, 5);
  const auto trained = [&] {
    engine.model.restart();
    for (int i = 0; i < 4; ++i)
      engine.step.run(
          [&](int) {
            test::set_batch(engine.model.network(), images, std::vector<std::int32_t>(32, 3));
          },
          0.05);
    return engine.model.master_weights();
  };
  const auto fused = trained();
  engine.step.set_repeatable(true);
  const auto once = trained();
  CHECK(trained() == once);
  CHECK(once != fused);
  engine.step.set_repeatable(false);
  CHECK(trained() != once);
}

// Both begin from the same gradients at the head and differ by roundings to T alone.
TEST_CASE("a block's gradient is the same where the convolution after it adds to it", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const Precision precision = GENERATE(Precision::fp16, Precision::bf16);
  const int batch = GENERATE(32, 5);  // rows that fill tiles, and that do not
  CAPTURE(name_of(precision), batch);
  auto settings = settings_of(kSmallBottlenecks, precision, 96);
  settings.network.batch_size = batch;
  settings.network.tuning.deterministic = true;
  settings.network.tuning.fusion = Fusion::none;
  const Run unfused = run(settings, 1, 0.01);
  settings.network.tuning.fusion = Fusion::gradients;
  const Run fused = run(settings, 1, 0.01);
  CHECK(fused.losses == unfused.losses);
  CHECK(fused.weights != unfused.weights);
  double worst = 0;
  for (std::size_t i = 0; i < fused.gradients.size(); ++i) {
    CAPTURE(fused.gradients[i].name);
    const double error =
        test::relative_error(fused.gradients[i].values, unfused.gradients[i].values);
    CHECK(error < (precision == Precision::fp16 ? 0.03 : 0.2));  // the units' test is stricter
    worst = std::max(worst, error);
  }
  CHECK(run(settings, 1, 0.01).weights == fused.weights);
  fmt::print("{}, batch {}: gradients of blocks fused and unfused differ by {:.1e} at most\n",
             name_of(precision), batch, worst);
}

// An untrained network amplifies small changes: float16's roundings alone change single tensors'
// gradients by tens of percent. So fused and unfused are both compared with float32, and fused must
// not be further from it.
TEST_CASE("gradients of the fused float16 step are as good as those of the unfused", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  auto settings = settings_of(find_architecture("resnet50"), Precision::fp32, 96);
  const Run exact = run(settings, 1, 0.01);
  settings.network.precision = Precision::fp16;
  settings.network.tuning.fusion = Fusion::none;
  const Run unfused = run(settings, 1, 0.01);
  settings.network.tuning.fusion = Fusion::all;
  const Run fused = run(settings, 1, 0.01);

  double unfused_sum = 0;
  double fused_sum = 0;
  double worst = 0;
  std::string where;
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    const auto& wanted = exact.gradients[i].values;
    const double a = test::relative_error(unfused.gradients[i].values, wanted);
    const double f = test::relative_error(fused.gradients[i].values, wanted);
    unfused_sum += a;
    fused_sum += f;
    if (f <= worst) continue;
    worst = f;
    where = exact.gradients[i].name;
  }
  const auto tensors = static_cast<double>(exact.gradients.size());
  fmt::print(
      "float16 gradients against float32's: fused {:.1e} mean, {:.1e} worst ({}); unfused "
      "{:.1e} mean\n",
      fused_sum / tensors, worst, where, unfused_sum / tensors);
  CHECK(fused_sum < 1.25 * unfused_sum);
  CHECK(worst < 1);
  CHECK(fused.losses[0] == Approx(exact.losses[0]).epsilon(1e-2));
}

TEST_CASE("500 steps of the fused float16 step learn as those of the unfused", "[fast]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  auto settings = settings_of(kSmallBottlenecks, Precision::fp16, 64);
  settings.network.tuning.fusion = Fusion::none;
  const Run unfused = run(settings, 500, 0.002);
  settings.network.tuning.fusion = Fusion::all;
  const Run fused = run(settings, 500, 0.002);
  fmt::print("loss of 500 steps: fused {:.4f} -> {:.4f}, unfused {:.4f} -> {:.4f}\n",
             fused.losses.front(), fused.losses.back(), unfused.losses.front(),
             unfused.losses.back());
  for (std::ptrdiff_t window = 0; window < 500; window += 50) {
    CAPTURE(window);
    CHECK(mean(fused.losses.begin() + window, fused.losses.begin() + window + 50) ==
          Approx(mean(unfused.losses.begin() + window, unfused.losses.begin() + window + 50))
              .margin(0.03 * unfused.losses.front()));
  }
  CHECK(fused.losses.back() < 0.5 * fused.losses.front());
}

}  // namespace shakedown::training
