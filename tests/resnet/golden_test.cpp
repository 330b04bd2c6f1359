// Whole networks against PyTorch in float64: tests/golden/make_golden.py says what is in the files
// and by which formula weights and inputs are made.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/network.hpp"
#include "training/step/engine.hpp"

namespace shakedown {

using namespace training;

namespace {

using nlohmann::json;

/// `count` values of offset + scale * u, u from the formula's stream.
std::vector<float> formula(std::uint64_t seed, std::size_t count, double scale, double offset = 0) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(offset + scale * (2 * random.uniform() - 1));
  return values;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::vector<Tensor> golden_weights(const ParameterTable& table) {
  std::vector<Tensor> tensors;
  std::uint64_t seed = 1000;
  for (const Parameter& p : table.parameters()) {
    double scale = 0;
    double offset = 0;
    switch (p.kind) {
      case ParameterKind::conv_weight:
        scale = std::sqrt(6.0 / static_cast<double>(p.shape[0] * p.shape[2] * p.shape[3]));
        break;
      case ParameterKind::norm_weight:
        scale = ends_with(p.name, "bn3.weight") ? 0.1 : 0.2;
        offset = ends_with(p.name, "bn3.weight") ? 0.5 : 1;
        break;
      case ParameterKind::norm_bias: scale = 2; break;
      case ParameterKind::linear_weight:
        scale = std::sqrt(1.0 / static_cast<double>(p.shape[1]));
        break;
      case ParameterKind::linear_bias: scale = 0.1; break;
    }
    tensors.push_back({p.name, p.shape, formula(seed++, p.count, scale, offset)});
  }
  seed = 5000;
  for (const RunningStatistics& s : table.statistics()) {
    const std::vector<std::int64_t> shape{static_cast<std::int64_t>(s.channels)};
    tensors.push_back({s.name + ".running_mean", shape, formula(seed++, s.channels, 0.1)});
    tensors.push_back({s.name + ".running_var", shape, formula(seed++, s.channels, 0.2, 1)});
  }
  return tensors;
}

/// Relative L2 error of the sampled elements; the expected norm is checked with them.
double sample_error(const std::vector<float>& found, const json& expected, double factor = 1) {
  const auto samples = expected.at("samples").get<std::vector<double>>();
  std::vector<double> picked;
  for (std::size_t j = 0; j < samples.size(); ++j) {
    const double at = (static_cast<double>(j) + 0.5) * static_cast<double>(found.size()) /
                      static_cast<double>(samples.size());
    picked.push_back(found[at] * factor);
  }
  double norm = 0;
  for (float v : found) norm += static_cast<double>(v) * v;
  const double norm_error =
      std::abs(std::sqrt(norm) * factor / expected.at("norm").get<double>() - 1);
  return std::max(test::relative_error(picked, samples), norm_error);
}

const std::vector<float>& values_of(const std::vector<Tensor>& tensors, const std::string& name) {
  for (const Tensor& tensor : tensors)
    if (tensor.name == name) return tensor.values;
  throw InternalError("no tensor " + name);
}

/// Errors of a list of tensors.
struct Errors {
  double worst = 0;
  std::string worst_name;
  double mean = 0;
};

Errors errors_of(const std::vector<Tensor>& found, const json& expected, double factor = 1) {
  Errors errors;
  for (const json& entry : expected) {
    const std::string name = entry.at("name");
    const double error = sample_error(values_of(found, name), entry, factor);
    errors.mean += error / static_cast<double>(expected.size());
    if (error <= errors.worst) continue;
    errors.worst = error;
    errors.worst_name = name;
  }
  return errors;
}

/// What each precision is held to: relative errors. Where inputs are rounded, ReLUs turn round in
/// some places, each of which moves all gradients before it: their mean error is limited instead of
/// the worst tensor's (tests/golden/make_golden.py).
struct Limits {
  double logits, worst_gradient, mean_gradient, running, first_loss, later_losses, weights;
};
Limits limits_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return {1e-4, 1e-4, 1e-4, 1e-4, 1e-5, 1e-3, 1e-4};
    case Precision::tf32: return {5e-3, 0.6, 0.15, 1e-2, 5e-3, 1e-2, 2e-2};
    case Precision::fp16: return {5e-3, 0.6, 0.15, 1e-2, 5e-3, 1e-2, 2e-2};
    case Precision::bf16: return {3e-2, 0.9, 0.4, 4e-2, 2e-2, 5e-2, 5e-2};
  }
  return {};
}

struct GoldenCase {
  BackendKind backend;
  Precision precision;
  std::string name;
};

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const char* name : {"resnet18", "resnet18_odd", "resnet50"})
    for (BackendKind backend : test::backends())
      for (Precision p : {Precision::fp32, Precision::tf32, Precision::fp16, Precision::bf16})
        if (backend == BackendKind::gpu || p == Precision::fp32)
          cases.push_back({backend, p, name});
  return cases;
}

}  // namespace

TEST_CASE("networks compute what PyTorch computes", "[golden]") {
  const GoldenCase c = GENERATE(from_range(golden_cases()));
  CAPTURE(name_of(c.backend), name_of(c.precision), c.name);
  std::ifstream in("tests/golden/" + c.name + ".json");
  REQUIRE(in);
  const json golden = json::parse(in);
  const json& training = golden.at("training");

  Backend backend = test::open_backend_of(c.backend);
  EngineSettings settings;
  settings.network.architecture = find_architecture(golden.at("model"));
  settings.network.batch_size = golden.at("batch_size");
  settings.network.image_size = golden.at("image_size");
  settings.network.classes = golden.at("classes");
  settings.network.label_smoothing = golden.at("label_smoothing");
  settings.network.precision = c.precision;
  settings.optimizer.momentum = golden.at("momentum");
  settings.optimizer.weight_decay = golden.at("weight_decay");
  settings.strategy.strategy = "none";
  Engine engine(settings, backend);
  engine.allocate(1);
  Network& network = engine.model.network();
  CHECK(test::load(network, golden_weights(network.table()), "formula").seeded.empty());

  const auto n = static_cast<std::size_t>(settings.network.batch_size);
  const auto side = static_cast<std::size_t>(settings.network.image_size);
  const auto images = formula(golden.at("input_seed"), n * 3 * side * side, std::sqrt(3.0));
  std::vector<std::int32_t> labels;
  for (std::size_t i = 0; i < n; ++i)
    labels.push_back(static_cast<std::int32_t>((7 * i + 3) %
                                               static_cast<std::size_t>(settings.network.classes)));
  const auto load = [&](int) { test::set_batch(network, images, labels); };
  const auto loss = [&] {
    const Metrics step = network.read_metrics().step;
    return step.loss_sum / static_cast<double>(step.samples);
  };
  const auto off = [](double found, double expected) { return std::abs(found / expected - 1); };
  const Limits limits = limits_of(c.precision);

  load(0);
  engine.model.evaluate();
  const double evaluated = sample_error(test::read_logits(network), golden["evaluation"]["logits"]);
  CHECK(evaluated < limits.logits);
  CHECK(off(loss(), golden["evaluation"]["loss"]) < limits.first_loss);

  const double rate = golden.at("learning_rate");
  engine.step.run(load, rate);
  const auto losses = training.at("losses").get<std::vector<double>>();
  const double first = off(loss(), losses[0]);
  CHECK(first < limits.first_loss);
  CHECK(sample_error(test::read_logits(network), training.at("logits")) < limits.logits);
  const float scale = scales_loss(c.precision) ? kInitialLossScale : 1;
  const Errors gradient = errors_of(test::gradients(network), training.at("gradients"), 1 / scale);
  CAPTURE(gradient.worst_name);
  CHECK(gradient.worst < limits.worst_gradient);
  CHECK(gradient.mean < limits.mean_gradient);
  const Errors running = errors_of(test::state(network), training.at("running"));
  CAPTURE(running.worst_name);
  CHECK(running.worst < limits.running);

  engine.step.run(load, rate);
  const double second = off(loss(), losses[1]);
  CHECK(second < limits.later_losses);
  engine.step.run(load, rate);
  const double third = off(loss(), losses[2]);
  CHECK(third < limits.later_losses);
  const Errors weights = errors_of(test::state(network), training.at("weights"));
  CAPTURE(weights.worst_name);
  CHECK(weights.worst < limits.weights);
  CHECK(engine.model.read_scalars().updates == 3);
  fmt::print(
      "golden {:<13} {} {}: relative errors: logits {:.1e}, gradients {:.1e} mean, {:.1e} worst "
      "({}), "
      "running statistics {:.1e}, losses {:.1e} {:.1e} {:.1e}, weights {:.1e}\n",
      c.name, name_of(c.backend), name_of(c.precision), evaluated, gradient.mean, gradient.worst,
      gradient.worst_name, running.worst, first, second, third, weights.worst);
}

}  // namespace shakedown
