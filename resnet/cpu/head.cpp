#include <cmath>
#include <limits>

#include "common/ensure.hpp"
#include "resnet/cpu/onednn.hpp"

namespace shakedown::cpu {
namespace {

/// features: the mean of each channel of x, N x C row by row.
void average_pool(const Planes& x, const float* from, float* features) {
  const std::ptrdiff_t pixels = x.h * x.w;
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t plane = 0; plane < x.count; ++plane) {
    float* const mean = features + plane * x.lanes;
    std::fill_n(mean, x.lanes, 0.0F);
    for (std::ptrdiff_t p = 0; p < pixels; ++p)
      for (std::ptrdiff_t l = 0; l < x.lanes; ++l)
        mean[l] += from[(plane * pixels + p) * x.lanes + l];
    for (std::ptrdiff_t l = 0; l < x.lanes; ++l) mean[l] /= static_cast<float>(pixels);
  }
}

void average_pool_backward(const Planes& x, const float* dfeatures, float* to) {
  const std::ptrdiff_t pixels = x.h * x.w;
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t plane = 0; plane < x.count; ++plane)
    for (std::ptrdiff_t p = 0; p < pixels; ++p)
      for (std::ptrdiff_t l = 0; l < x.lanes; ++l)
        to[(plane * pixels + p) * x.lanes + l] =
            dfeatures[plane * x.lanes + l] / static_cast<float>(pixels);
}

class CpuHead final : public NetworkUnit {
 public:
  CpuHead(CpuContext& context, const HeadSpec& spec)
      : context_(context), spec_(spec), x_(spec.x_shape, context.tag) {
    const Moments when = spec.when;
    const std::size_t feature_bytes =
        ActivationShape{spec.x_shape.n, spec.x_shape.c, 1, 1}.count() * sizeof(float);
    features_ = context.saved("features", feature_bytes, when);
    dfeatures_ = context.scratch("dfeatures", feature_bytes, when.backward);
    dlogits_ = context.saved("dlogits", spec.logits->bytes(), when);
  }

  void bind() override {}

  void forward(Pass) override {
    context_.run("average_pool", spec_.weight, pooled_bytes(),
                 [&] { average_pool(x_, spec_.x->as<float>(), features_->as<float>()); });
    const int n = spec_.x_shape.n;
    const int c = spec_.x_shape.c;
    const int classes = spec_.classes;
    auto* logits = spec_.logits->as<float>();
    const float* bias = context_.weights.vector(spec_.bias);
    const auto* w = static_cast<const float*>(context_.weights.compute(spec_.weight));
    context_.log.run(matmul(), [&] {
      for (int i = 0; i < n; ++i) std::copy_n(bias, classes, logits + std::ptrdiff_t{i} * classes);
      gemm({'N', 'T', n, classes, c}, features_->as<float>(), w, 1.0F, logits);
    });
    context_.run("softmax_cross_entropy", spec_.weight, 2 * static_cast<double>(dlogits_->bytes()),
                 [&] { count_samples(); });
  }

  void backward() override {
    const int n = spec_.x_shape.n;
    const int c = spec_.x_shape.c;
    const int classes = spec_.classes;
    const Weights& weights = context_.weights;
    const auto* dlogits = dlogits_->as<float>();
    context_.run("bias_gradient", spec_.weight, static_cast<double>(dlogits_->bytes()), [&] {
      auto* dbias = static_cast<float*>(weights.gradient(spec_.bias));
      std::fill_n(dbias, classes, 0.0F);
      for (int i = 0; i < n; ++i)
        for (int k = 0; k < classes; ++k) dbias[k] += dlogits[std::ptrdiff_t{i} * classes + k];
    });
    context_.log.run(matmul(), [&] {
      gemm({'T', 'N', classes, c, n}, dlogits, features_->as<float>(), 0.0F,
           static_cast<float*>(weights.gradient(spec_.weight)));
    });
    const auto* w = static_cast<const float*>(weights.compute(spec_.weight));
    context_.log.run(matmul(), [&] {
      gemm({'N', 'N', n, c, classes}, dlogits, w, 0.0F, dfeatures_->as<float>());
    });
    context_.run("average_pool_backward", spec_.weight, pooled_bytes(), [&] {
      average_pool_backward(x_, dfeatures_->as<float>(), spec_.dx->as<float>());
    });
  }

 private:
  double pooled_bytes() const {
    return static_cast<double>(spec_.x_shape.count() * sizeof(float) + features_->bytes());
  }
  /// Each of the three: of logits, features and weights, two give the third.
  Work matmul() const {
    const double n = spec_.x_shape.n;
    const double c = spec_.x_shape.c;
    const double k = spec_.classes;
    return {"matmul", spec_.weight, sizeof(float) * (n * c + c * k + n * k), 2 * n * c * k};
  }

  void count_samples() const {
    Metrics step;
    for (int i = 0; i < spec_.x_shape.n; ++i) add_sample(i, step);
    spec_.metrics->step = step;
    spec_.metrics->total += step;
  }

  /// Loss, hits and logit gradients of sample i.
  void add_sample(int i, Metrics& step) const {
    const int classes = spec_.classes;
    const float* logits = spec_.logits->as<float>() + std::ptrdiff_t{i} * classes;
    float* dlogits = dlogits_->as<float>() + std::ptrdiff_t{i} * classes;
    const int label = spec_.labels->as<std::int32_t>()[i];
    if (label < 0) {  // padding
      std::fill_n(dlogits, classes, 0.0F);
      return;
    }
    float highest = -std::numeric_limits<float>::infinity();
    for (int k = 0; k < classes; ++k) highest = std::max(highest, logits[k]);
    double sum = 0;
    double shifted_sum = 0;
    int better = 0;  // not (other <= own), so that a NaN never counts as a hit
    for (int k = 0; k < classes; ++k) {
      const float shifted = logits[k] - highest;
      dlogits[k] = std::exp(shifted);
      sum += dlogits[k];
      shifted_sum += shifted;
      if (k != label && !(k < label ? logits[k] < logits[label] : logits[k] <= logits[label]))
        ++better;
    }
    const double log_sum = std::log(sum);
    const float smooth = spec_.label_smoothing / static_cast<float>(classes);
    step.loss_sum += summable(log_sum - (1 - spec_.label_smoothing) * (logits[label] - highest) -
                              smooth * shifted_sum);
    step.top1 += better < 1 ? 1 : 0;
    step.top5 += better < 5 ? 1 : 0;
    ++step.samples;

    const float scale = *spec_.loss_scale / static_cast<float>(spec_.x_shape.n);
    const auto normal = static_cast<float>(1 / sum);
    for (int k = 0; k < classes; ++k) {
      const float target = smooth + (k == label ? 1 - spec_.label_smoothing : 0.0F);
      dlogits[k] = (dlogits[k] * normal - target) * scale;
    }
  }

  CpuContext& context_;
  HeadSpec spec_;
  Planes x_;
  const Slot* features_;
  const Slot* dfeatures_;
  const Slot* dlogits_;
};

}  // namespace

void gemm(const GemmShape& s, const float* a, const float* b, float beta, float* c) {
  const dnnl_dim_t lda = s.ta == 'N' ? s.k : s.m;
  const dnnl_dim_t ldb = s.tb == 'N' ? s.n : s.k;
  const dnnl_status_t status =
      dnnl_sgemm(s.ta, s.tb, s.m, s.n, s.k, 1.0F, a, lda, b, ldb, beta, c, s.n);
  if (status != dnnl_success)
    throw_library_error("oneDNN", "dnnl_sgemm", __FILE__, __LINE__,
                        "status " + std::to_string(status));
}

std::unique_ptr<NetworkUnit> make_head(CpuContext& context, const HeadSpec& spec) {
  return std::make_unique<CpuHead>(context, spec);
}

}  // namespace shakedown::cpu
