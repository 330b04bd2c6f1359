#include "training/measure/link_sweep.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/kernels.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

constexpr std::size_t kParts = 32;
constexpr int kSamples = 5;
constexpr double kLong_s = 0.5;  // an exchange that takes this long is timed twice
constexpr std::size_t kMostTouched = std::size_t{256} << 20;  // beyond the caches of a rank

/// Gradients of each rank, rank 0's memory to average all of them, and what is touched in between;
/// `fit`: whether all ranks have the memory.
struct Buffers {
  Buffers(Backend& backend, DataType type, std::size_t bytes, std::size_t step_bytes,
          const MpiSession& session) {
    const auto others = static_cast<std::size_t>(session.world_size() - 1);
    double fits = 1;
    try {
      Device& device = *backend.device;
      mine = Buffer(device, bytes);
      touched = Buffer(device, std::min(step_bytes, kMostTouched));
      aligned = Buffer(device, sizeof(float));
      if (session.is_root()) {
        theirs = Buffer(device, bytes * others);
        if (type != DataType::float32) sum = Buffer(device, bytes / size_of(type) * sizeof(float));
      }
    } catch (const UsageError&) {
      fits = 0;
    }
    const auto all = session.all_gather(fits);
    fit = *std::min_element(all.begin(), all.end()) > 0;
  }
  Buffer mine, theirs, sum, touched, aligned;
  bool fit = false;
};

class Sweep {
 public:
  Sweep(Backend& backend, DataType type, const Buffers& buffers, const MpiSession& session)
      : backend_(backend),
        type_(type),
        buffers_(buffers),
        session_(session),
        stream_(backend.device->make_stream()),
        begin_(backend.device->make_event()),
        end_(backend.device->make_event()) {
    for (const Buffer* buffer :
         {&buffers.mine, &buffers.theirs, &buffers.sum, &buffers.touched, &buffers.aligned})
      backend.device->zero(buffer->data(), buffer->bytes(), *stream_);
  }

  std::vector<Json> measure() const {
    std::vector<double> bytes, ring_us, star_us;
    const std::size_t largest = buffers_.mine.bytes() / size_of(type_);
    for (std::size_t part = kParts; part >= 1; part /= 2) {
      const std::size_t count = largest / part;
      bytes.push_back(static_cast<double>(count * size_of(type_)));
      ring_us.push_back(1e6 * time([&] { all_reduce(count); }));
      star_us.push_back(1e6 * time([&] { push(count); }));
    }
    const double average_s = time([&] { average(largest); });
    const double averaged = static_cast<double>(buffers_.mine.bytes()) * session_.world_size();
    return {{{"path", "ring"}, {"bytes", bytes}, {"time_us", ring_us}},
            {{"path", "star"},
             {"bytes", bytes},
             {"time_us", star_us},
             {"average_gbs", 1e-9 * averaged / average_s}}};
  }

 private:
  Communicator& world() const { return *backend_.world; }
  View mine(std::size_t count) const { return buffers_.mine.view(type_).slice(0, count); }
  View theirs(int rank, std::size_t count) const {
    return buffers_.theirs.view(type_).slice(static_cast<std::size_t>(rank - 1) * count, count);
  }

  void all_reduce(std::size_t count) const {
    world().all_reduce(mine(count), mine(count), Reduction::avg, *stream_);
  }
  void push(std::size_t count) const {
    world().group([&] {
      if (world().rank() > 0) return world().send(mine(count), 0, *stream_);
      for (int from = 1; from < world().size(); ++from)
        world().recv(theirs(from, count), from, *stream_);
    });
  }
  /// As exchange/star.cpp does.
  void average(std::size_t count) const {
    if (world().rank() > 0) return;
    const Kernels& kernels = backend_.device->kernels();
    const View sum =
        type_ == DataType::float32 ? mine(count) : buffers_.sum.view(DataType::float32);
    if (type_ != DataType::float32) kernels.accumulate(sum, mine(count), true, *stream_);
    for (int from = 1; from < world().size(); ++from)
      kernels.accumulate(sum, theirs(from, count), false, *stream_);
    kernels.scale(sum, mine(count), 1.0F / static_cast<float>(world().size()), *stream_);
  }

  /// Seconds; the same on every rank.
  double time(const std::function<void()>& work) const {
    const double first = once(work);  // connects, too
    if (const double second = once(work); second > kLong_s) return std::min(first, second);
    std::vector<double> samples;
    for (int i = 0; i < kSamples; ++i) samples.push_back(once(work));
    return median_of(samples);
  }

  /// Time of the slowest rank. The ranks are aligned on the stream: no host is late for the work.
  double once(const std::function<void()>& work) const {
    const View touched = buffers_.touched.view(DataType::float32);
    backend_.device->kernels().scale(touched, touched, 1, *stream_);
    const View aligned = buffers_.aligned.view(DataType::float32);
    world().all_reduce(aligned, aligned, Reduction::sum, *stream_);
    begin_->record(*stream_);
    work();
    end_->record(*stream_);
    world().wait(*end_, HostWait::polite);
    const auto all = session_.all_gather(end_->milliseconds_since(*begin_) / 1e3);
    return *std::max_element(all.begin(), all.end());
  }

  Backend& backend_;
  DataType type_;
  const Buffers& buffers_;
  const MpiSession& session_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_;
  std::unique_ptr<Event> end_;
};

}  // namespace

std::vector<Json> measure_links(Backend& backend, DataType type, std::size_t largest_bytes,
                                std::size_t step_bytes, const MpiSession& session) {
  if (session.world_size() == 1) return {};
  const Buffers buffers(backend, type, largest_bytes, step_bytes, session);
  if (!buffers.fit) return {};
  return Sweep(backend, type, buffers, session).measure();
}

Json ready_record(Engine& engine, const Trace& steps) {
  const Network& network = engine.model.network();
  const ParameterTable& table = network.table();
  const BackwardTimes times = backward_times(steps);
  std::vector<int> blocks;
  std::vector<double> bytes, ready_ms;  // of the payload in float32; since backward began
  const auto& parameters = table.parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    const auto count = static_cast<double>(table.payload_in({p->offset, p->offset + p->stored}));
    blocks.push_back(p->block);
    bytes.push_back(count * sizeof(float));
    ready_ms.push_back(times.ready_ms.at(static_cast<std::size_t>(p->block)));
  }
  const NetworkSettings& shape = network.settings();
  return {{"block", blocks},
          {"bytes", bytes},
          {"ready_ms", ready_ms},
          {"backward_ms", times.backward_ms},
          {"weight_bytes_factor",  // bytes that travel for one of float32
           static_cast<double>(size_of(network.weights().type())) / sizeof(float)},
          {"input_bytes_per_image", static_cast<double>(batch_bytes(shape)) / shape.batch_size}};
}

}  // namespace shakedown::training
