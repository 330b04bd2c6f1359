#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "common/ensure.hpp"
#include "resnet/cpu/onednn.hpp"

namespace shakedown::cpu {
namespace {

class CpuUnits final : public UnitFactory {
 public:
  explicit CpuUnits(const UnitContext& context) : context_(context) {}

  std::unique_ptr<NetworkUnit> stem(const StemSpec& spec) override {
    return make_stem(context_, spec);
  }
  std::unique_ptr<NetworkUnit> conv_norm(const ConvNormSpec& spec) override {
    return make_conv_norm(context_, spec);
  }
  std::unique_ptr<NetworkUnit> conv_norm_add(const ConvNormAddSpec& spec) override {
    return make_conv_norm_add(context_, spec);
  }
  std::unique_ptr<NetworkUnit> head(const HeadSpec& spec) override {
    return make_head(context_, spec);
  }

  Roofs measure_roofs() override { return cpu::measure_roofs(context_); }

  /// The image has three channels and is kept plain; every other activation is in the one layout.
  int lanes(const ActivationShape& shape) const override {
    return shape.c == kStemChannels ? 1 : static_cast<int>(Planes(shape, context_.tag).lanes);
  }

  void normalise_images(const std::uint8_t* images, const ActivationShape& shape,
                        const Slot& x) override {
    const std::ptrdiff_t pixels = std::ptrdiff_t{shape.h} * shape.w;
    auto* to = x.as<float>();
#pragma omp parallel for schedule(static)
    for (int n = 0; n < shape.n; ++n) {
      for (int c = 0; c < 3; ++c) {
        const std::uint8_t* from = images + n * pixels * 3 + c;
        float* plane = to + (std::ptrdiff_t{n} * 3 + c) * pixels;
        const float scale = 1.0F / (255.0F * kImageDeviation[c]);
        const float shift = kImageMean[c] / kImageDeviation[c];
        for (std::ptrdiff_t i = 0; i < pixels; ++i)
          plane[i] = static_cast<float>(from[i * 3]) * scale - shift;
      }
    }
  }

  void pack_parameter(const Parameter& parameter, std::span<const float> canonical,
                      std::span<float> stored) const override {
    if (parameter.kind == ParameterKind::conv_weight)
      reorder(plain(parameter), canonical, stored_layout(parameter), stored);
    else
      std::copy(canonical.begin(), canonical.end(), stored.begin());
  }
  void unpack_parameter(const Parameter& parameter, std::span<const float> stored,
                        std::span<float> canonical) const override {
    if (parameter.kind == ParameterKind::conv_weight)
      reorder(stored_layout(parameter), stored, plain(parameter), canonical);
    else
      std::copy(stored.begin(), stored.end(), canonical.begin());
  }

 private:
  static Desc plain(const Parameter& parameter) {
    return {{parameter.shape[0], parameter.shape[1], parameter.shape[2], parameter.shape[3]},
            dnnl::memory::data_type::f32,
            Tag::oihw};
  }

  /// As the unit that uses the weights chose it; plain where none does.
  Desc stored_layout(const Parameter& parameter) const {
    const auto chosen = context_.weight_layouts.find(parameter.name);
    return chosen == context_.weight_layouts.end() ? plain(parameter) : chosen->second;
  }

  template <class From, class To>
  void reorder(const Desc& from_desc, std::span<From> from, const Desc& to_desc,
               std::span<To> to) const {
    ENSURE(from.size_bytes() >= from_desc.get_size() && to.size_bytes() >= to_desc.get_size(),
           "reorder counts");
    dnnl::memory source(from_desc, context_.engine,
                        const_cast<void*>(static_cast<const void*>(from.data())));
    dnnl::memory target(to_desc, context_.engine, to.data());
    dnnl::stream stream(context_.engine);
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
  }

  CpuContext context_;
};

}  // namespace

std::unique_ptr<UnitFactory> make_units(const UnitContext& context) {
  return std::make_unique<CpuUnits>(context);
}

namespace {

constexpr std::size_t kCopyBytes = std::size_t{256} << 20;  // beyond any cache's share of a rank
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr int kMatrixSize = 2048;
constexpr int kRuns = 10;

/// Time of the fastest of `kRuns` runs, as other users of the processor slow the rest. A first run,
/// not timed, touches the memory.
template <class Body>
double fastest_ms(Body&& body) {
  using Clock = std::chrono::steady_clock;
  body();
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    const auto start = Clock::now();
    body();
    const std::chrono::duration<double, std::milli> ms = Clock::now() - start;
    fastest = std::min(fastest, ms.count());
  }
  return fastest;
}

/// Uses all threads, for which Device::copy is not made.
void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t pieces = bytes / kPieceBytes;
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < pieces; ++i)
    std::memcpy(to + i * kPieceBytes, from + i * kPieceBytes, kPieceBytes);
}

/// Numbers from -0.5 to 0.5 that are written by the threads that read them.
void fill(float* x, std::size_t count) {
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < count; ++i)
    x[i] = static_cast<float>(i * 2654435761U % 1024) / 1024.0F - 0.5F;
}

}  // namespace

Roofs measure_roofs(CpuContext& context) {
  Device& device = context.device;
  Roofs roofs{0, kCopyBytes, 0, kMatrixSize};
  {
    const Buffer from(device, kCopyBytes);
    const Buffer to(device, kCopyBytes);
    fill(static_cast<float*>(from.data()), kCopyBytes / sizeof(float));
    const double ms = fastest_ms([&] {
      copy(static_cast<std::byte*>(to.data()), static_cast<const std::byte*>(from.data()),
           kCopyBytes);
    });
    roofs.copy_gbs = 2.0 * static_cast<double>(kCopyBytes) / ms / 1e6;
  }
  constexpr auto n = static_cast<std::size_t>(kMatrixSize);
  const Buffer matrices(device, 3 * n * n * sizeof(float));
  auto* const a = static_cast<float*>(matrices.data());
  fill(a, 3 * n * n);
  const double ms = fastest_ms([&] {
    gemm({'N', 'N', kMatrixSize, kMatrixSize, kMatrixSize}, a, a + n * n, 0, a + 2 * n * n);
  });
  roofs.matrix_tflops = 2.0 * kMatrixSize * kMatrixSize * kMatrixSize / ms / 1e9;
  return roofs;
}

}  // namespace shakedown::cpu
