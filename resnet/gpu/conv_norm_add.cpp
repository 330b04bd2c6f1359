#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNormAdd final : public Unit {
 public:
  GpuConvNormAdd(Shared& shared, const ConvNormAddSpec& spec) : shared_(shared), spec_(spec) {
    MemoryPlan& plan = shared.context.plan;
    const ActivationShape y = spec.layer.conv.y();
    const std::size_t bytes = y.count() * size_of(shared.type);
    const Moments when = spec.when;
    mask_ = plan.reserve("mask", gpu::mask_bytes(y, shared.type), when.forward, when.backward);
    dz_ = plan.reserve("dz", bytes, when.backward, when.backward);  // of one norm after the other
    sums_ = plan.reserve("sums", reduction_scratch(y, shared.type, 3) * sizeof(float),
                         when.backward, when.backward);
    main_ = std::make_unique<NormedConvolution>(shared, spec.layer, when, spec.x,
                                                spec.x_in_backward(), dz_, spec.dx);
    if (spec.shortcut_layer) {
      dsum_ = plan.reserve("dsum", bytes, when.backward, when.backward);
      projection_ = std::make_unique<NormedConvolution>(
          shared, *spec.shortcut_layer, when, spec.shortcut, spec.shortcut, dz_, spec.dshortcut);
    } else {
      dsum_ = spec.dshortcut;  // the identity hands the gradient on as it is
    }
  }

  void bind() override {
    main_->bind();
    if (projection_) projection_->bind();
  }

  void forward(Pass pass) override {
    main_->forward(pass);
    NormVectors shortcut_norm{};
    if (projection_) {
      projection_->forward(pass);
      shortcut_norm = projection_->vectors();
    }
    run("normalise_add_relu", 3 * main_->bytes() + mask_bytes(), [&] {
      normalise_add_relu(main_->z(), main_->vectors(),
                         projection_ ? projection_->z() : spec_.shortcut->data(),
                         projection_ ? &shortcut_norm : nullptr, spec_.y->data(),
                         mask_->as<std::uint8_t>(), main_->shape(), shared_.type, shared_.stream);
    });
  }

  void backward() override {
    const auto added = [](const NormedConvolution& convolution) {
      return AddedNorm{convolution.z(), convolution.vectors(), convolution.parameters()};
    };
    const AddedNorm main = added(*main_);
    AddedNorm projection{};
    if (projection_) projection = added(*projection_);
    const int tensors = 3 + (spec_.dy.second != nullptr ? 1 : 0) + (projection_ ? 1 : 0);
    run("add_relu_backward", tensors * main_->bytes() + mask_bytes(), [&] {
      add_relu_backward(
          spec_.dy.first->data(), spec_.dy.second != nullptr ? spec_.dy.second->data() : nullptr,
          mask_->as<std::uint8_t>(), dsum_->data(), main, projection_ ? &projection : nullptr,
          main_->shape(), shared_.type, sums_->as<float>(), shared_.stream);
    });
    for (NormedConvolution* branch : {main_.get(), projection_.get()}) {
      if (branch == nullptr) continue;
      shared_.run("normalise_apply", branch->weight(), 3 * branch->bytes(), [&] {
        normalise_apply(dsum_->data(), branch->z(), branch->vectors(), dz_->data(), branch->shape(),
                        shared_.type, shared_.stream);
      });
      branch->backward();
    }
  }

 private:
  template <class Body>
  void run(const char* kernel, double bytes, Body&& body) const {
    shared_.run(kernel, main_->weight(), bytes, body);
  }
  double mask_bytes() const { return static_cast<double>(mask_->bytes()); }

  Shared& shared_;
  ConvNormAddSpec spec_;
  const Slot* mask_;
  const Slot* dz_;
  const Slot* sums_;
  const Slot* dsum_;
  std::unique_ptr<NormedConvolution> main_;
  std::unique_ptr<NormedConvolution> projection_;
};

}  // namespace

std::unique_ptr<Unit> make_conv_norm_add(Shared& shared, const ConvNormAddSpec& spec) {
  return std::make_unique<GpuConvNormAdd>(shared, spec);
}

}  // namespace shakedown::gpu
