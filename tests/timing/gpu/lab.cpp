#include "tests/timing/gpu/lab.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/kernels.hpp"

namespace shakedown::timing {
namespace {

constexpr std::size_t kWorkspace = std::size_t{256} << 20;

}  // namespace

Lab::Lab(Device& on_device, Precision of, int images)
    : device(on_device),
      batch(images),
      precision(of),
      type(compute_type(of)),
      stream(device.make_stream()),
      cuda_stream(native(*stream)),
      dnn(cuda_stream),
      blas(device, cuda_stream),
      start_(device.make_event()),
      end_(device.make_event()),
      workspace_(device, kWorkspace) {}

/// randomise() always begins with the same numbers: each buffer skips some.
void* Lab::random(std::size_t count, DataType of) {
  const std::size_t skipped = 448 * (buffers_++ % 64);  // a multiple of 128 bytes
  const Buffer& made = memory_.emplace_back(device, (skipped + count) * size_of(of));
  randomise(made.data(), skipped + count, of, cuda_stream);
  return static_cast<std::uint8_t*>(made.data()) + skipped * size_of(of);
}

Call Lab::convolution(ConvKind kind, const ConvShape& conv, const ConvBuffers& buffers) {
  std::vector<Call> calls;
  for (const auto& plan : plan_convolution(dnn.get, {kind, conv, precision, false, 8, ""}))
    if (plan->workspace_bytes <= kWorkspace)
      calls.push_back([this, bound = std::make_shared<BoundPlan>(
                                 plan, buffers, workspace_.data())] { bound->execute(dnn.get); });
  return fastest(calls);
}

Call Lab::product(const PartedProduct::Shape& shape, const void* left, const void* right,
                  float* to) {
  if (shape.parts == 0) return {};
  const auto product = std::make_shared<PartedProduct>(blas, shape, kWorkspace);
  std::vector<Call> calls;
  for (std::size_t i = 0; i < product->algorithms(); ++i)
    calls.push_back(
        [=, this] { product->run(i, left, right, to, workspace_.data(), cuda_stream); });
  return fastest(calls);
}

Call Lab::fastest(const std::vector<Call>& calls) {
  Call best;
  double least = 0;
  for (const Call& call : calls) {
    call();  // which loads the kernels
    const double us = std::min({time_us(call), time_us(call), time_us(call)});
    if (!best || us < least) best = call, least = us;
  }
  return best;
}

Values Lab::sample(const void* from, DataType of, std::size_t count, std::size_t every,
                   std::size_t take) const {
  const Buffer wide(device, count * sizeof(float));
  device.kernels().convert(ConstView(from, count, of, Place::device), wide.view(DataType::float32),
                           *stream);
  stream->synchronize();
  std::vector<float> host((count - take) / every * take + take);
  CHECK_CUDA(cudaMemcpy2D(host.data(), take * sizeof(float), wide.data(), every * sizeof(float),
                          take * sizeof(float), host.size() / take, cudaMemcpyDeviceToHost));
  return {host.begin(), host.end()};
}

Values Lab::rows(const void* from, const ActivationShape& shape) const {
  const auto width = static_cast<std::size_t>(shape.c);
  return sample(from, type, shape.count(), (rows_of(shape) / 500 | 1) * width, width);
}

Values Lab::totals(const float* partials, int count, int sums, int width) {
  const auto size = static_cast<std::size_t>(sums * width);
  float* const total = floats(size);
  sum_partials(partials, count, sums * width, total, cuda_stream);
  return sample(total, DataType::float32, size, static_cast<std::size_t>(width), 8);
}

double Lab::time_us(const Call& run) {
  pause(50 + 20 * kCalls, cuda_stream);  // the host is ahead of what is timed
  start_->record(*stream);
  for (int call = 0; call < kCalls; ++call) run();
  end_->record(*stream);
  end_->synchronize();
  return 1e3 * end_->milliseconds_since(*start_) / kCalls;
}

std::vector<std::vector<double>> Lab::times_us(const std::vector<Way>& ways) {
  std::vector<std::vector<double>> times(ways.size());
  for (int turn = -1; turn < kTurns; ++turn)  // the first one loads the kernels
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (!ways[i].run) continue;
      const double us = time_us(ways[i].run);
      if (turn >= 0) times[i].push_back(us);
    }
  return times;
}

std::string text_of(const ActivationShape& shape) {
  return fmt::format("{} x {} x {} x {}", shape.n, shape.h, shape.w, shape.c);
}

Call in_order(const std::vector<Call>& calls) {
  for (const Call& call : calls)
    if (!call) return {};
  return [calls] {
    for (const Call& call : calls) call();
  };
}

}  // namespace shakedown::timing
