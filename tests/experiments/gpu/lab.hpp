// Kernels of a step timed alone: libraries' handles, memory of random numbers, a timer.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "common/statistics.hpp"
#include "resnet/gpu/convolution.hpp"
#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/experiments/gpu/experiment.hpp"

namespace shakedown::experiments {

using namespace shakedown::gpu;

inline constexpr int kTurns = 9;
inline constexpr int kCalls = 5;  // of a turn, back to back
inline constexpr std::size_t kWorkspace = std::size_t{256} << 20;

using Call = std::function<void()>;
struct Row {
  std::string name;
  Call run;  // or nothing: refused
};

class Timer {
 public:
  explicit Timer(const Bench& bench)
      : stream_(bench.stream), start_(bench.device.make_event()), end_(bench.device.make_event()) {}

  double us(const Call& run) {
    pause(50 + 20 * kCalls, native(stream_));  // the host is ahead of what is timed
    start_->record(stream_);
    for (int call = 0; call < kCalls; ++call) run();
    end_->record(stream_);
    end_->synchronize();
    return 1e3 * end_->milliseconds_since(*start_) / kCalls;
  }
  /// Interleaved; prints median, lowest, highest, and the median less the first row's.
  void compare(const std::string& title, std::vector<Row> rows) {
    std::erase_if(rows, [&](const Row& row) {
      if (!row.run) fmt::print("{:26} {:>8}  {}\n", title, "refused", row.name);
      return !row.run;
    });
    if (rows.empty()) return;
    std::vector<std::vector<double>> all(rows.size());
    for (const Row& row : rows) us(row.run);  // which loads the kernels
    for (int turn = 0; turn < kTurns; ++turn)
      for (std::size_t i = 0; i < rows.size(); ++i) all[i].push_back(us(rows[i].run));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto [low, high] = std::minmax_element(all[i].begin(), all[i].end());
      fmt::print("{:26} {:8.1f} {:8.1f} {:8.1f} us {:+8.1f}  {}\n", title, median_of(all[i]), *low,
                 *high, median_of(all[i]) - median_of(all[0]), rows[i].name);
    }
    std::fflush(stdout);
  }
  /// The index of the fastest of `count`.
  std::size_t fastest(std::size_t count, const std::function<void(std::size_t)>& run) {
    ENSURE(count > 0, "an algorithm");
    std::size_t best = 0;
    double least = 0;
    for (std::size_t i = 0; i < count; ++i) {
      run(i);
      const double time =
          std::min(us([&] { run(i); }), std::min(us([&] { run(i); }), us([&] { run(i); })));
      if (i == 0 || time < least) best = i, least = time;
    }
    return best;
  }

 private:
  Stream& stream_;
  std::unique_ptr<Event> start_, end_;
};

/// The bench, with libraries' handles and memory of random numbers.
struct Lab {
  const Bench& bench;
  Precision precision;
  DataType type;
  cudaStream_t stream;
  Timer timer;
  DnnHandle dnn;
  BlasHandle blas;
  Buffer workspace;

  Lab(const Bench& b, Precision of)
      : bench(b),
        precision(of),
        type(compute_type(of)),
        stream(native(b.stream)),
        timer(b),
        dnn(stream),
        blas(b.device, stream),
        workspace(b.device, kWorkspace) {}

  Buffer random(std::size_t count, DataType of) const {
    Buffer made(bench.device, count * size_of(of));
    randomise(made.data(), count, of, stream);
    return made;
  }
  Buffer tensor(const ActivationShape& shape) const { return random(shape.count(), type); }
  Buffer floats(std::size_t count) const { return random(count, DataType::float32); }

  /// The fastest of cuDNN's algorithms, bound; nothing where it has none.
  Call convolution(ConvKind kind, const ConvShape& conv, const ConvBuffers& buffers) {
    const ConvPlans plans = plan_convolution(dnn.get, {kind, conv, precision, false, 8, ""});
    std::vector<std::shared_ptr<BoundPlan>> bound;
    for (const auto& plan : plans)
      if (plan->workspace_bytes() <= kWorkspace)
        bound.push_back(std::make_shared<BoundPlan>(plan, buffers, workspace.data()));
    if (bound.empty()) return {};
    const std::size_t best =
        timer.fastest(bound.size(), [&](std::size_t i) { bound[i]->execute(dnn.get); });
    return [this, plan = bound[best]] { plan->execute(dnn.get); };
  }
  /// The fastest of cublasLt's; nothing where it has none.
  Call product(int parts, std::size_t rows, const void* left, int left_columns, const void* right,
               int right_columns, float* to) {
    auto made = std::make_shared<PartedProduct>(
        blas, PartedProduct::Shape{rows, parts, left_columns, right_columns, type}, kWorkspace);
    if (made->algorithms() == 0) return {};
    const auto run = [this, made, left, right, to](std::size_t i) {
      made->run(i, left, right, to, workspace.data(), stream);
    };
    const std::size_t best = timer.fastest(made->algorithms(), run);
    return [run, best] { run(best); };
  }
};

/// The norms' vectors and parameters of a unit, random.
struct Norm {
  Buffer memory, parameters, gradients;
  NormVectors vectors;
  NormParameters of;

  Norm(const Lab& lab, int channels)
      : memory(lab.floats(NormVectors::kCount * static_cast<std::size_t>(channels))),
        parameters(lab.floats(4 * static_cast<std::size_t>(channels))),
        gradients(lab.floats(2 * static_cast<std::size_t>(channels))),
        vectors(NormVectors::in(static_cast<float*>(memory.data()), channels)) {
    auto* p = static_cast<float*>(parameters.data());
    auto* g = static_cast<float*>(gradients.data());
    of = {p, p + channels, p + 2 * channels, p + 3 * channels, g, g + channels};
  }
};

inline float* floats_in(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

}  // namespace shakedown::experiments
