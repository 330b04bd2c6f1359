#include <algorithm>
#include <array>

#include "common/ensure.hpp"
#include "resnet/cpu/onednn.hpp"

namespace shakedown::cpu {
namespace {

constexpr std::uint8_t kNothing = 255;  // argmax where no input is positive

/// Calls body(tap, row, column) for the places of a pooled pixel's 3x3 window that exist.
template <class Body>
void for_each_tap(const Planes& x, std::ptrdiff_t pooled_row, std::ptrdiff_t pooled_column,
                  Body&& body) {
  for (int tap = 0; tap < 9; ++tap) {
    const std::ptrdiff_t row = 2 * pooled_row - 1 + tap / 3;
    const std::ptrdiff_t column = 2 * pooled_column - 1 + tap % 3;
    if (row >= 0 && row < x.h && column >= 0 && column < x.w) body(tap, row, column);
  }
}

constexpr std::ptrdiff_t kMostLanes = 64;

/// best = max(best, values), where a NaN is larger than any number, as in PyTorch; `where` gets the
/// tap of what is larger. In floats and without branches, so that it is vectorised.
void keep_larger(const float* values, int tap, std::ptrdiff_t lanes, float* best, float* where) {
  const auto place = static_cast<float>(tap);
#pragma omp simd
  for (std::ptrdiff_t l = 0; l < lanes; ++l) {
    const float x = values[l];
    const float larger = x > best[l] ? x : best[l];
    const float at = x > best[l] ? place : where[l];
    best[l] = x != x ? x : larger;
    where[l] = x != x ? place : at;
  }
}

/// to = max_pool(relu(from)). argmax gets the place in the window, or kNothing.
void relu_max_pool(const Planes& x, const Planes& y, const float* from, float* to,
                   std::uint8_t* argmax) {
#pragma omp parallel for collapse(2) schedule(static)
  for (std::ptrdiff_t plane = 0; plane < y.count; ++plane)
    for (std::ptrdiff_t row = 0; row < y.h; ++row)
      for (std::ptrdiff_t column = 0; column < y.w; ++column) {
        float* const best = to + y.at(plane, row, column);
        std::array<float, kMostLanes> where;
        std::fill_n(best, y.lanes, 0.0F);  // what is not larger does not pass the ReLU
        where.fill(kNothing);
        for_each_tap(x, row, column, [&](int tap, std::ptrdiff_t x_row, std::ptrdiff_t x_column) {
          keep_larger(from + x.at(plane, x_row, x_column), tap, y.lanes, best, where.data());
        });
        std::transform(where.begin(), where.begin() + y.lanes, argmax + y.at(plane, row, column),
                       [](float tap) { return static_cast<std::uint8_t>(static_cast<int>(tap)); });
      }
}

/// The gradient of relu_max_pool's input from that of its output, a + b; b may be null.
void relu_max_pool_backward(const Planes& x, const Planes& y, const float* a, const float* b,
                            const std::uint8_t* argmax, float* to) {
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t plane = 0; plane < y.count; ++plane) {  // windows overlap within a plane
    std::fill_n(to + x.at(plane, 0, 0), x.h * x.w * x.lanes, 0.0F);
    for (std::ptrdiff_t row = 0; row < y.h; ++row)
      for (std::ptrdiff_t column = 0; column < y.w; ++column) {
        std::array<std::ptrdiff_t, 9> places{};
        for_each_tap(x, row, column, [&](int tap, std::ptrdiff_t x_row, std::ptrdiff_t x_column) {
          places[static_cast<std::size_t>(tap)] = x.at(plane, x_row, x_column);
        });
        const std::ptrdiff_t first = y.at(plane, row, column);
        for (std::ptrdiff_t l = 0; l < y.lanes; ++l) {
          const std::uint8_t where = argmax[first + l];
          if (where == kNothing) continue;
          to[places[where] + l] += b == nullptr ? a[first + l] : a[first + l] + b[first + l];
        }
      }
  }
}

class CpuStem final : public NetworkUnit {
 public:
  CpuStem(CpuContext& context, const StemSpec& spec)
      : context_(context),
        spec_(spec),
        normed_(spec.layer.conv.y(), context.tag),
        pooled_(pooled(spec.layer.conv.y()), context.tag) {
    ENSURE(normed_.lanes <= kMostLanes, "channels of the stem");
    const Moments when = spec.when;
    const std::size_t bytes = spec.layer.conv.y().count() * sizeof(float);
    activation_ = context.scratch("stem activation", bytes, when.forward);
    argmax_ = context.saved("stem argmax", pooled(spec.layer.conv.y()).count(), when);
    dactivation_ = context.scratch("stem dactivation", bytes, when.backward);
    convolution_ = std::make_unique<NormedConvolution>(
        context, spec.layer, when, activation_desc(spec.layer.conv.x, Tag::nchw), spec.x,
        activation_, nullptr);
  }

  void bind() override { convolution_->bind(); }

  void forward(Pass pass) override {
    convolution_->forward(pass);
    run("relu_max_pool", 1, [&] {
      relu_max_pool(normed_, pooled_, activation_->as<float>(), spec_.y->as<float>(),
                    argmax_->as<std::uint8_t>());
    });
  }

  void backward() override {
    const Addends& dy = spec_.dy;
    run("relu_max_pool_backward", dy.second != nullptr ? 2 : 1, [&] {
      relu_max_pool_backward(normed_, pooled_, dy.first->as<float>(),
                             dy.second != nullptr ? dy.second->as<float>() : nullptr,
                             argmax_->as<std::uint8_t>(), dactivation_->as<float>());
    });
    convolution_->backward(dactivation_);
  }

 private:
  /// A pass over the activation, the argmax and this many pooled tensors.
  template <class Body>
  void run(const char* kernel, int pooled_tensors, Body&& body) const {
    const auto pooled_count = static_cast<double>(argmax_->bytes());
    context_.run(kernel, convolution_->weight(),
                 static_cast<double>(activation_->bytes()) +
                     pooled_count * (1.0 + pooled_tensors * double{sizeof(float)}),
                 body);
  }

  CpuContext& context_;
  StemSpec spec_;
  Planes normed_;
  Planes pooled_;
  const Slot* activation_;
  const Slot* argmax_;
  const Slot* dactivation_;
  std::unique_ptr<NormedConvolution> convolution_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_stem(CpuContext& context, const StemSpec& spec) {
  return std::make_unique<CpuStem>(context, spec);
}

}  // namespace shakedown::cpu
