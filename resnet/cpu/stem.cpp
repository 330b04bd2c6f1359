#include "resnet/cpu/units.hpp"

namespace shakedown::cpu {
namespace {

constexpr PoolShape kPool{dnnl::algorithm::pooling_max, 3, 2, 1};

class CpuStem final : public Unit {
 public:
  CpuStem(Shared& shared, const StemSpec& spec)
      : shared_(shared),
        spec_(spec),
        normed_(activation_desc(spec.layer.conv.y(), shared.tag)),
        pooled_(activation_desc(pooled(spec.layer.conv.y()), shared.tag)),
        forward_(pool_forward(shared.engine, kPool, normed_, pooled_)),
        backward_(pool_backward(shared.engine, kPool, normed_, pooled_, forward_)) {
    MemoryPlan& plan = shared.context.plan;
    const Moments when = spec.when;
    activation_ = plan.reserve("stem activation", normed_.get_size(), when.forward, when.forward);
    argmax_ = plan.reserve("stem argmax", forward_.workspace_desc().get_size(), when.forward,
                           when.backward);
    dy_ = plan.reserve("stem dy", pooled_.get_size(), when.backward, when.backward);
    dactivation_ =
        plan.reserve("stem dactivation", normed_.get_size(), when.backward, when.backward);
    scratch_ = plan.reserve("stem pool scratch", forward_.scratchpad_desc().get_size(),
                            when.forward, when.forward);
    backward_scratch_ = plan.reserve("stem pool scratch", backward_.scratchpad_desc().get_size(),
                                     when.backward, when.backward);
    convolution_ = std::make_unique<NormedConvolution>(
        shared, spec.layer, when, true, activation_desc(spec.layer.conv.x, Tag::nchw), spec.x,
        activation_, nullptr);
  }

  void bind() override {
    convolution_->bind();
    const dnnl::memory argmax = shared_.memory(forward_.workspace_desc(), argmax_);
    pool_ = {dnnl::pooling_forward(forward_),
             {{DNNL_ARG_SRC, shared_.memory(normed_, activation_)},
              {DNNL_ARG_DST, shared_.memory(pooled_, spec_.y)},
              {DNNL_ARG_WORKSPACE, argmax},
              {DNNL_ARG_SCRATCHPAD, shared_.memory(forward_.scratchpad_desc(), scratch_)}}};
    unpool_ = {
        dnnl::pooling_backward(backward_),
        {{DNNL_ARG_DIFF_DST, shared_.memory(pooled_, dy_)},
         {DNNL_ARG_DIFF_SRC, shared_.memory(normed_, dactivation_)},
         {DNNL_ARG_WORKSPACE, argmax},
         {DNNL_ARG_SCRATCHPAD, shared_.memory(backward_.scratchpad_desc(), backward_scratch_)}}};
  }

  void forward(Pass pass) override {
    convolution_->forward(pass);
    shared_.run("max_pool", convolution_->weight(), pool_bytes(), pool_);
  }

  void backward() override {
    const int weight = convolution_->weight();
    shared_.run("add_addends", weight, (spec_.dy.second ? 3 : 2) * bytes_of(pooled_), [&] {
      add_addends(spec_.dy.first->as<float>(),
                  spec_.dy.second ? spec_.dy.second->as<float>() : nullptr, dy_->as<float>(),
                  pooled_.get_size() / sizeof(float));
    });
    shared_.run("max_pool_backward", weight, pool_bytes(), unpool_);
    convolution_->backward(dactivation_);
  }

 private:
  /// Of the pool's input, output and places, or of their gradients.
  double pool_bytes() const {
    return bytes_of(normed_) + bytes_of(pooled_) + static_cast<double>(argmax_->bytes());
  }

  Shared& shared_;
  StemSpec spec_;
  Desc normed_;
  Desc pooled_;
  PoolForward forward_;
  PoolBackward backward_;
  const Slot* activation_;
  const Slot* argmax_;
  const Slot* dy_;
  const Slot* dactivation_;
  const Slot* scratch_;
  const Slot* backward_scratch_;
  std::unique_ptr<NormedConvolution> convolution_;
  Operation pool_;
  Operation unpool_;
};

}  // namespace

void add_addends(const float* a, const float* b, float* to, std::size_t count) {
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < count; ++i) to[i] = b == nullptr ? a[i] : a[i] + b[i];
}

std::unique_ptr<Unit> make_stem(Shared& shared, const StemSpec& spec) {
  return std::make_unique<CpuStem>(shared, spec);
}

}  // namespace shakedown::cpu
