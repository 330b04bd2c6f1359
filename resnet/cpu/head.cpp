#include <cmath>
#include <limits>

#include "common/error.hpp"
#include "resnet/cpu/units.hpp"

namespace shakedown::cpu {
namespace {

/// C = alpha A B + beta C, row-major; `ta` and `tb` are 'N' or 'T', C is m x n.
void gemm(char ta, char tb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, const float* a,
          dnnl_dim_t lda, const float* b, dnnl_dim_t ldb, float beta, float* c) {
  const dnnl_status_t status = dnnl_sgemm(ta, tb, m, n, k, 1.0F, a, lda, b, ldb, beta, c, n);
  if (status != dnnl_success)
    throw_library_error("oneDNN", "dnnl_sgemm", __FILE__, __LINE__,
                        "status " + std::to_string(status));
}

class CpuHead final : public Unit {
 public:
  CpuHead(Shared& shared, const HeadSpec& spec)
      : shared_(shared),
        spec_(spec),
        pool_shape_{dnnl::algorithm::pooling_avg_exclude_padding, spec.x_shape.h, 1, 0},
        x_desc_(activation_desc(spec.x_shape, shared.tag)),
        // N C 1 1 in any of the layouts that are kept is N x C, row by row
        features_desc_(activation_desc({spec.x_shape.n, spec.x_shape.c, 1, 1}, shared.tag)),
        pool_forward_(cpu::pool_forward(shared.engine, pool_shape_, x_desc_, features_desc_)),
        pool_backward_(cpu::pool_backward(shared.engine, pool_shape_, x_desc_, features_desc_,
                                          pool_forward_)) {
    ENSURE(spec.x_shape.h == spec.x_shape.w, "images are square");
    MemoryPlan& plan = shared.context.plan;
    const Moments when = spec.when;
    features_ = plan.reserve("features", features_desc_.get_size(), when.forward, when.backward);
    dfeatures_ = plan.reserve("dfeatures", features_desc_.get_size(), when.backward, when.backward);
    dlogits_ = plan.reserve("dlogits", spec.logits->bytes(), when.forward, when.backward);
    scratch_ = plan.reserve("pool scratch", pool_forward_.scratchpad_desc().get_size(),
                            when.forward, when.forward);
    backward_scratch_ = plan.reserve("pool scratch", pool_backward_.scratchpad_desc().get_size(),
                                     when.backward, when.backward);
  }

  void bind() override {
    pool_ = {dnnl::pooling_forward(pool_forward_),
             {{DNNL_ARG_SRC, shared_.memory(x_desc_, spec_.x)},
              {DNNL_ARG_DST, shared_.memory(features_desc_, features_)},
              {DNNL_ARG_SCRATCHPAD, shared_.memory(pool_forward_.scratchpad_desc(), scratch_)}}};
    unpool_ = {dnnl::pooling_backward(pool_backward_),
               {{DNNL_ARG_DIFF_DST, shared_.memory(features_desc_, dfeatures_)},
                {DNNL_ARG_DIFF_SRC, shared_.memory(x_desc_, spec_.dx)},
                {DNNL_ARG_SCRATCHPAD,
                 shared_.memory(pool_backward_.scratchpad_desc(), backward_scratch_)}}};
  }

  void forward(Pass) override {
    pool_.run(shared_.stream);
    const int n = spec_.x_shape.n;
    const int c = spec_.x_shape.c;
    const int classes = spec_.classes;
    auto* logits = spec_.logits->as<float>();
    const float* bias = shared_.context.weights.vector(spec_.bias);
    for (int i = 0; i < n; ++i) std::copy_n(bias, classes, logits + std::ptrdiff_t{i} * classes);
    gemm('N', 'T', n, classes, c, features_->as<float>(), c,
         static_cast<const float*>(shared_.context.weights.compute(spec_.weight)), c, 1.0F, logits);

    Metrics step;
    for (int i = 0; i < n; ++i) add_sample(i, step);
    Metrics& total = spec_.metrics->total;
    spec_.metrics->step = step;
    total.loss_sum += step.loss_sum;
    total.top1 += step.top1;
    total.top5 += step.top5;
    total.samples += step.samples;
  }

  void backward() override {
    const int n = spec_.x_shape.n;
    const int c = spec_.x_shape.c;
    const int classes = spec_.classes;
    const Weights& weights = shared_.context.weights;
    const auto* dlogits = dlogits_->as<float>();
    auto* dbias = static_cast<float*>(weights.gradient(spec_.bias));
    std::fill_n(dbias, classes, 0.0F);
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < classes; ++k) dbias[k] += dlogits[std::ptrdiff_t{i} * classes + k];
    gemm('T', 'N', classes, c, n, dlogits, classes, features_->as<float>(), c, 0.0F,
         static_cast<float*>(weights.gradient(spec_.weight)));
    gemm('N', 'N', n, c, classes, dlogits, classes,
         static_cast<const float*>(weights.compute(spec_.weight)), c, 0.0F,
         dfeatures_->as<float>());
    unpool_.run(shared_.stream);
  }

 private:
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
    step.loss_sum +=
        log_sum - (1 - spec_.label_smoothing) * (logits[label] - highest) - smooth * shifted_sum;
    step.top1 += better < 1 ? 1 : 0;
    step.top5 += better < 5 ? 1 : 0;
    ++step.samples;

    const float scale = spec_.scalars->loss_scale / static_cast<float>(spec_.x_shape.n);
    const auto normal = static_cast<float>(1 / sum);
    for (int k = 0; k < classes; ++k) {
      const float target = smooth + (k == label ? 1 - spec_.label_smoothing : 0.0F);
      dlogits[k] = (dlogits[k] * normal - target) * scale;
    }
  }

  Shared& shared_;
  HeadSpec spec_;
  PoolShape pool_shape_;
  Desc x_desc_;
  Desc features_desc_;
  PoolForward pool_forward_;
  PoolBackward pool_backward_;
  const Slot* features_;
  const Slot* dfeatures_;
  const Slot* dlogits_;
  const Slot* scratch_;
  const Slot* backward_scratch_;
  Operation pool_;
  Operation unpool_;
};

}  // namespace

std::unique_ptr<Unit> make_head(Shared& shared, const HeadSpec& spec) {
  return std::make_unique<CpuHead>(shared, spec);
}

}  // namespace shakedown::cpu
