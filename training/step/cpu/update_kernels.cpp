#include "training/step/update_kernels.hpp"
#include "common/ensure.hpp"

#include <cmath>

#include "common/cpu/kernels.hpp"
#include "common/kernels.hpp"

namespace shakedown::cpu {

using namespace training;

namespace {

class CpuUpdateKernels final : public UpdateKernels {
 public:
  void update(const UpdateRange& range, const UpdateRule& rule, const StepScalars* scalars,
              Stream&) const override {
    const float rate = scalars->learning_rate;
    const SgdSettings sgd = rule.of_sgd;
    const AdamSettings adam = rule.of_adam;
    const AdamStep step = adam_step(adam, *scalars);
    switch (rule.kind) {
      case UpdateRule::sgd:
        return for_elements(range, *scalars, [=](auto& r, std::size_t i, float g, bool decayed) {
          sgd_update(r.master[i], r.state_a[i], g, decayed, sgd, rate);
        });
      case UpdateRule::lars:
        return for_elements(range, *scalars, [=](auto& r, std::size_t i, float g, bool decayed) {
          const float own_rate = rate * r.trust[r.tensors[i / kFlatAlignment]];
          lars_update(r.master[i], r.state_a[i], g, decayed, sgd, own_rate);
        });
      case UpdateRule::adam:
        return for_elements(range, *scalars, [=](auto& r, std::size_t i, float g, bool decayed) {
          adam_update(r.master[i], r.state_a[i], r.state_b[i], g, decayed, adam, step);
        });
    }
  }

  void sum_pieces(ConstView gradient, const float* weights, std::span<const NormPiece> pieces,
                  Squares* partials, Stream&) const override {
    dispatch(gradient, [&](const auto* g) {
#pragma omp parallel for schedule(static)
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        const NormPiece& piece = pieces[p];
        double of_gradient = 0;
        double of_weight = 0;
        for (std::size_t i = piece.begin; i < piece.begin + piece.count; ++i) {
          const double x = load(g[i]);
          const double w = weights == nullptr ? 0 : weights[i];
          of_gradient += x * x;
          of_weight += w * w;
        }
        partials[piece.slot] = {static_cast<float>(of_gradient), static_cast<float>(of_weight)};
      }
    });
  }

  void sum_parameters(const Squares* partials, std::span<const std::uint32_t> first, Squares* sums,
                      Stream&) const override {
    for (std::size_t p = 0; p + 1 < first.size(); ++p) {
      double of_gradient = 0;
      double of_weight = 0;
      for (std::uint32_t i = first[p]; i < first[p + 1]; ++i) {
        of_gradient += partials[i].gradient;
        of_weight += partials[i].weight;
      }
      sums[p] = {static_cast<float>(of_gradient), static_cast<float>(of_weight)};
    }
  }

  void apply_norms(std::span<const Squares> sums, const NormSettings& settings,
                   const std::uint8_t* adapted, float* trust, StepScalars* scalars,
                   Stream&) const override {
    double all = 0;
    for (const Squares& parameter : sums) all += parameter.gradient;
    take_norm(*scalars, all, settings.clip);
    for (std::size_t p = 0; p < sums.size(); ++p)
      trust[p] = adapted[p] ? trust_ratio(sums[p], gradient_factor(*scalars), settings) : 1.0F;
  }

  void average(View average, ConstView x, const EmaSettings& settings, const StepScalars* scalars,
               Stream&) const override {
    const float share = ema_share(settings, *scalars);
    if (share == 0) return;
    auto* const to = static_cast<float*>(average.data);
    const auto* const from = static_cast<const float*>(x.data);
    parallel_for(x.count, [=](std::size_t i) { to[i] += share * (from[i] - to[i]); });
  }

  void finish_update(StepScalars* scalars, bool dynamic_scale, Stream&) const override {
    finish_step(*scalars, dynamic_scale);
  }

  void set_learning_rate(StepScalars* scalars, float value, Stream&) const override {
    scalars->learning_rate = value;
  }

 private:
  /// Calls body for every element with its gradient and whether it decays.
  template <class Body>
  static void for_elements(const UpdateRange& range, const StepScalars& scalars, Body&& body) {
    if (!scalars.finite) return;
    ENSURE(range.compute == nullptr && range.copy_count == 0,
           "the cpu backend computes in float32");
    const float factor = gradient_factor(scalars);
    const ConstView gradients(range.gradient, range.count, range.gradient_type, Place::device);
    dispatch(gradients, [&](const auto* gradient) {
      parallel_for(range.count, [=](std::size_t i) {
        const bool decayed = range.decayed == nullptr || range.decayed[i / kFlatAlignment];
        body(range, i, load(gradient[i]) * factor, decayed);
      });
    });
  }
};

}  // namespace

std::unique_ptr<UpdateKernels> make_update_kernels() {
  return std::make_unique<CpuUpdateKernels>();
}

}  // namespace shakedown::cpu
