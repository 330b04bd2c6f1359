#include "training/predict/link_sweep.hpp"

#include <algorithm>
#include <functional>

#include "common/error.hpp"
#include "common/statistics.hpp"

namespace shakedown::training {
namespace {

constexpr std::size_t kParts = 32;
constexpr int kRepetitions = 5;
constexpr int kMostInARow = 10;
constexpr double kInARow_s = 0.02;  // an exchange that takes longer is timed alone,
constexpr double kLong_s = 0.5;     // and one that takes this long, once

class Sweep {
 public:
  Sweep(Backend& backend, Stream& stream, const MpiSession& session)
      : backend_(backend),
        stream_(stream),
        session_(session),
        begin_(backend.device->make_event()),
        end_(backend.device->make_event()) {}

  /// Seconds of one exchange; the same on every rank.
  double time(const std::function<void()>& exchange) const {
    const double first = once(1, exchange);  // connects, too
    const double second = once(1, exchange);
    if (second > kLong_s) return std::min(first, second);
    const auto in_a_row = std::clamp(static_cast<int>(kInARow_s / second), 1, kMostInARow);
    std::vector<double> samples;
    for (int i = 0; i < kRepetitions; ++i) samples.push_back(once(in_a_row, exchange));
    return median_of(samples);
  }

 private:
  double once(int in_a_row, const std::function<void()>& exchange) const {
    backend_.world->barrier();
    begin_->record(stream_);
    for (int i = 0; i < in_a_row; ++i) exchange();
    end_->record(stream_);
    backend_.world->wait(*end_, HostWait::polite);
    const auto all = session_.all_gather(end_->milliseconds_since(*begin_) / 1e3 / in_a_row);
    return *std::max_element(all.begin(), all.end());
  }

  Backend& backend_;
  Stream& stream_;
  const MpiSession& session_;
  std::unique_ptr<Event> begin_;
  std::unique_ptr<Event> end_;
};

/// A gradient buffer on each rank, and at rank 0 another for each of the others; nothing where that
/// does not fit on every rank.
struct Buffers {
  Buffers(Backend& backend, std::size_t bytes, const MpiSession& session) {
    const auto others = static_cast<std::size_t>(session.world_size() - 1);
    double fits = 1;
    try {
      mine = Buffer(*backend.device, bytes);
      if (session.is_root()) theirs = Buffer(*backend.device, bytes * others);
    } catch (const UsageError&) {
      fits = 0;
    }
    const auto all = session.all_gather(fits);
    fit = *std::min_element(all.begin(), all.end()) > 0;
  }
  Buffer mine;
  Buffer theirs;
  bool fit = false;
};

}  // namespace

MeasuredLinks measure_links(Backend& backend, DataType type, std::size_t largest_bytes,
                            const MpiSession& session) {
  MeasuredLinks links;
  Communicator& world = *backend.world;
  if (world.size() == 1) return links;
  const Buffers buffers(backend, largest_bytes, session);
  if (!buffers.fit) return links;
  const auto stream = backend.device->make_stream();
  backend.device->zero(buffers.mine.data(), buffers.mine.bytes(), *stream);
  const Sweep sweep(backend, *stream, session);
  for (std::size_t part = kParts; part >= 1; part /= 2) {
    const std::size_t count = largest_bytes / size_of(type) / part;
    const View view = buffers.mine.view(type).slice(0, count);
    const auto bytes = static_cast<double>(view.bytes());
    links.ring.push_back(
        {bytes, sweep.time([&] { world.all_reduce(view, view, Reduction::sum, *stream); })});
    links.star.push_back({bytes, sweep.time([&] {
                            world.group([&] {
                              if (world.rank() > 0) return world.send(view, 0, *stream);
                              for (int from = 1; from < world.size(); ++from)
                                world.recv(buffers.theirs.view(type).slice(
                                               static_cast<std::size_t>(from - 1) * count, count),
                                           from, *stream);
                            });
                          })});
  }
  return links;
}

}  // namespace shakedown::training
