// The passes over tensors of the norms, and the update, at ResNet-50's shapes. The references are
// loops in float64 over the first eight channels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/timing/gpu/lab.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::timing {
namespace {

/// The tensors that a norm's passes read and write.
struct Tensors {
  Lab& lab;
  ActivationShape shape;
  void *z = lab.tensor(shape), *dy = lab.tensor(shape), *second = lab.tensor(shape),
       *out = lab.tensor(shape);
  // set where y, of normalise_add_relu, is positive
  std::uint8_t* mask = lab.octets(mask_bytes(shape, lab.type));
  NormVectors norm = lab.norm(shape.c);
  NormParameters parameters = lab.parameters(shape.c);
  float* partials = lab.floats(reduction_scratch(shape, lab.type, 3));
  int count = 0;

  Tensors(Lab& l, const ActivationShape& of) : lab(l), shape(of) { end(); }
  Launch on() const { return lab.on(shape); }
  void end() { normalise_add_relu(z, {norm, second, std::nullopt, out, mask}, on()); }
  Values sums(int of) const { return lab.totals(partials, count, of, shape.c); }
};

/// An element of the tensors, its channel's vectors, and what y is there.
struct Element {
  double z, dy, second;
  double mean, normed, a, b, c;  // normed: of z
};

struct Pass {
  const char* name;
  const char* what;
  double tensors;  // that it reads and writes
  std::function<void(Tensors&)> run;
  std::function<std::vector<Values>(const Tensors&)> outputs;
  std::function<Values(const Element&)> expected;  // of an element of out, or addends of its sums
  bool sums = false;
};

Values expected_of(const Tensors& t, const Pass& pass) {
  const Values z = t.lab.channels(t.z, t.shape), dy = t.lab.channels(t.dy, t.shape),
               second = t.lab.channels(t.second, t.shape);
  const auto of = [&](const float* vector) { return t.lab.floats_at(vector, 8); };
  const Values mean = of(t.norm.mean), scale = of(t.norm.scale), shift = of(t.norm.shift),
               a = of(t.norm.grad_a), b = of(t.norm.grad_b), c = of(t.norm.grad_c);
  Values all;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const std::size_t k = i % 8;
    const Values made = pass.expected(
        {z[i], dy[i], second[i], mean[k], z[i] * scale[k] + shift[k], a[k], b[k], c[k]});
    all.resize(pass.sums ? 8 * made.size() : all.size() + 1);
    for (std::size_t s = 0; s < made.size(); ++s)
      (pass.sums ? all[8 * s + k] : all.back()) += made[s];
  }
  return all;
}

std::vector<Values> out_of(const Tensors& t) { return {t.lab.channels(t.out, t.shape)}; }

/// batch_statistics as the sums that they are made of.
std::vector<Values> moments_of(const Tensors& t) {
  const double n = static_cast<double>(rows_of(t.shape));
  const Values mean = t.lab.floats_at(t.norm.mean, 8), invstd = t.lab.floats_at(t.norm.invstd, 8);
  Values sums;
  for (const double m : mean) sums.push_back(n * m);
  for (std::size_t c = 0; c < 8; ++c)
    sums.push_back(n * (1 / (invstd[c] * invstd[c]) - kNormEpsilon + mean[c] * mean[c]));
  return {sums};
}

double relu_of(double x) { return std::max(0.0, x); }

std::vector<Pass> passes() {
  return {
      {"batch_statistics", "mean and variance of z", 1,
       [](Tensors& t) { batch_statistics(t.z, t.parameters, t.norm, t.partials, t.on()); },
       moments_of,
       [](const Element& e) {
         return Values{e.z, e.z * e.z};
       },
       true},
      {"normalise_relu", "y = relu(norm(z))", 2,
       [](Tensors& t) { normalise_relu(t.z, t.norm, t.out, t.on()); }, out_of,
       [](const Element& e) { return Values{relu_of(e.normed)}; }},
      {"normalise_relu_sums", "the same, and sums of y", 2,
       [](Tensors& t) { t.count = normalise_relu_sums(t.z, t.norm, t.out, t.partials, t.on()); },
       [](const Tensors& t) { return std::vector<Values>{t.sums(1)}; },
       [](const Element& e) { return Values{relu_of(e.normed)}; }, true},
      {"normalise_add_relu", "y = relu(norm(z) + shortcut), and its mask", 3.06,
       [](Tensors& t) { t.end(); }, out_of,
       [](const Element& e) { return Values{relu_of(e.normed + e.second)}; }},
      {"add_relu_backward", "the reduction of its gradient: dy where the mask is set", 3.06,
       [](Tensors& t) {
         t.count = add_relu_backward(t.dy, {nullptr, 1}, t.mask, {1, {{t.z, t.norm.mean}}},
                                     t.partials, t.on());
       },
       [](const Tensors& t) { return std::vector<Values>{t.sums(2)}; },
       [](const Element& e) {
         const double g = e.normed + e.second > 0 ? e.dy : 0;
         return Values{g, g * (e.z - e.mean)};
       },
       true},
      {"normalise_relu_backward", "the reduction of the gradient of normalise_relu", 2,
       [](Tensors& t) { t.count = normalise_relu_backward(t.dy, t.z, t.norm, t.partials, t.on()); },
       [](const Tensors& t) { return std::vector<Values>{t.sums(2)}; },
       [](const Element& e) {
         const double g = e.normed > 0 ? e.dy : 0;
         return Values{g, g * (e.z - e.mean)};
       },
       true},
      {"normalise_relu_apply", "dz = a (dy where y > 0) + b z + c", 3,
       [](Tensors& t) { normalise_apply(t.dy, t.z, t.norm, true, t.out, t.on()); }, out_of,
       [](const Element& e) { return Values{e.a * (e.normed > 0 ? e.dy : 0) + e.b * e.z + e.c}; }},
      {"normalise_apply", "dz = a dy + b z + c", 3,
       [](Tensors& t) { normalise_apply(t.dy, t.z, t.norm, false, t.out, t.on()); }, out_of,
       [](const Element& e) { return Values{e.a * e.dy + e.b * e.z + e.c}; }},
  };
}

Bench pass_at(Lab& lab, const Pass& pass, int hw, int channels) {
  const auto t = std::make_shared<Tensors>(lab, ActivationShape{lab.batch, channels, hw, hw});
  return {text_of(t->shape),
          pass.tensors * lab.bytes(t->shape),
          0,
          {{"the kernel", [t, pass] { pass.run(*t); }}},
          [t, pass] { return pass.outputs(*t); },
          [t, pass] { return std::vector<Values>{expected_of(*t, pass)}; }};
}

/// SGD with momentum over ResNet-50's weights, which have a rounded copy.
Bench sgd(Lab& lab) {
  using namespace training;
  constexpr std::size_t kWeights = 25'557'032, kChecked = 4096;
  UpdateRange range;
  range.master = lab.floats(kWeights);
  range.compute = lab.random(kWeights, lab.type);
  range.gradient = lab.random(kWeights, lab.type);
  range.compute_type = range.gradient_type = lab.type;
  range.state_a = lab.floats(kWeights);
  range.count = kWeights;
  StepScalars scalars;
  scalars.learning_rate = 0.1F;
  auto* const on_device = reinterpret_cast<StepScalars*>(lab.floats(sizeof(scalars) / 4));
  upload<StepScalars>(lab.device, *lab.stream, on_device, std::span(&scalars, 1));
  const SgdSettings settings{0.9F, 1e-4F};
  return {fmt::format("{} weights", kWeights),
          kWeights * (16 + 2.0 * static_cast<double>(size_of(lab.type))),
          0,
          {{"the kernel",
            [&lab, range, settings, on_device,
             kernels = std::shared_ptr<UpdateKernels>(make_update_kernels(lab.device))] {
              kernels->update(range, {UpdateRule::sgd, settings}, on_device, *lab.stream);
            }}},
          [&lab, range] { return std::vector<Values>{lab.floats_at(range.master, kChecked)}; },
          [=, &lab] {
            Values weights = lab.floats_at(range.master, kChecked);
            const Values momenta = lab.floats_at(range.state_a, kChecked);
            const Values gradients =
                lab.sample(range.gradient, lab.type, kChecked, kChecked, kChecked);
            for (std::size_t i = 0; i < kChecked; ++i)
              weights[i] -= scalars.learning_rate * (settings.momentum * momenta[i] + gradients[i] +
                                                     settings.weight_decay * weights[i]);
            return std::vector<Values>{weights};
          }};
}

}  // namespace

std::vector<Kernel> pass_kernels() {
  std::vector<Kernel> all;
  for (const Pass& pass : passes()) {
    Kernel& kernel = all.emplace_back(Kernel{pass.name, pass.what, {}});
    for (const auto& [hw, channels] :
         {std::pair(56, 64), std::pair(56, 256), std::pair(28, 512), std::pair(14, 1024)})
      kernel.shapes.push_back([pass, hw = hw, channels = channels](Lab& lab) {
        return pass_at(lab, pass, hw, channels);
      });
  }
  all.push_back({"sgd", "the update, with momentum and a rounded copy", {sgd}});
  return all;
}

}  // namespace shakedown::timing
