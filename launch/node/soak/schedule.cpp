#include "launch/node/soak/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

namespace shakedown::node {
namespace {

bool lists(const std::vector<std::string>& names, const char* name) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& listed) { return listed == name || listed == "all"; });
}

}  // namespace

const char* name_of(LoadKind kind) {
  constexpr const char* kNames[] = {"products", "probes", "memory", "copies", "collectives"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(Shape shape) {
  constexpr const char* kNames[] = {"sweep", "steady", "square", "mixed"};
  return kNames[static_cast<int>(shape)];
}

std::string Phase::name() const {
  std::vector<std::string> parts;
  for (const LoadKind kind : loads) {
    std::string part = name_of(kind);
    if (kind == LoadKind::products && type) part += fmt::format(" {}", node::name_of(*type));
    if (kind == LoadKind::products && pulse_hertz > 0)
      part += fmt::format(" {:.3g} Hz", pulse_hertz);
    parts.push_back(part);
  }
  return fmt::format("{} {}", node::name_of(shape), fmt::join(parts, ", "));
}

bool Phase::has(LoadKind kind) const {
  return std::find(loads.begin(), loads.end(), kind) != loads.end();
}

bool any_has(const std::vector<Phase>& phases, LoadKind kind) {
  return std::ranges::any_of(phases, [&](const Phase& phase) { return phase.has(kind); });
}

std::vector<Phase> phases_of_cycle(const std::vector<std::string>& shapes,
                                   const std::vector<std::string>& loads,
                                   const std::vector<ProductType>& types, bool alone, int cycle) {
  std::vector<LoadKind> kinds;
  for (const LoadKind kind : kLoads) {
    const bool possible = kind == LoadKind::products      ? !types.empty()
                          : kind == LoadKind::collectives ? !alone
                                                          : true;
    if (possible && lists(loads, name_of(kind))) kinds.push_back(kind);
  }
  const bool products = !kinds.empty() && kinds.front() == LoadKind::products;
  const auto type = [&](int turn) -> std::optional<ProductType> {
    if (!products) return std::nullopt;
    return types[static_cast<std::size_t>(turn) % types.size()];
  };
  std::vector<Phase> phases;
  const auto add_each = [&](Shape shape, double products_share, double share, double memory_share) {
    for (const LoadKind kind : kinds) {
      if (kind == LoadKind::products)
        for (auto each = types.rbegin(); each != types.rend(); ++each)
          phases.push_back({shape, {kind}, *each, 0, products_share});
      else
        phases.push_back({shape, {kind}, {}, 0, kind == LoadKind::memory ? memory_share : share});
    }
  };
  const bool sweeps_alone = std::ranges::none_of(
      kShapes, [&](Shape shape) { return shape != Shape::sweep && lists(shapes, name_of(shape)); });
  if (lists(shapes, name_of(Shape::sweep)) && (cycle == 0 || sweeps_alone))
    add_each(Shape::sweep, 0, 0.05, 0.15);  // of memory two sweeps of an H200
  if (lists(shapes, name_of(Shape::steady))) add_each(Shape::steady, 1, 0.4, 1);
  constexpr double kHertz[] = {2, 0.5, 10, 1, 5};
  if (products && lists(shapes, name_of(Shape::square)))
    phases.push_back({Shape::square,
                      {LoadKind::products},
                      type(cycle),
                      kHertz[cycle % 5],
                      kHertz[cycle % 5] < 1 ? 2. : 1.});  // two periods
  std::erase(kinds, LoadKind::probes);
  if (kinds.size() > 1 && lists(shapes, name_of(Shape::mixed)))
    phases.push_back({Shape::mixed, kinds, type(cycle + 1), 0});
  return phases;
}

double window_seconds(double total_s, const std::vector<Phase>& cycle) {
  double shares = 0;
  for (const Phase& phase : cycle) shares += phase.share;
  return std::min(2.0, total_s / (2 * shares));  // infinite of nothing but a sweep of products
}

void fit_pulses(std::vector<Phase>& phases, double window_s) {
  for (Phase& phase : phases)
    if (phase.pulse_hertz > 0)
      phase.pulse_hertz = std::max(phase.pulse_hertz, 2 / window_s / phase.share);
}

PaceClock steady_clock() {
  using Clock = std::chrono::steady_clock;
  return {[] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); },
          [](double until) {
            std::this_thread::sleep_until(Clock::time_point(
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(until))));
          }};
}

Pace::Pace(Stream& stream, std::array<std::unique_ptr<Event>, 2> events, PaceClock clock)
    : stream_(stream), events_(std::move(events)), clock_(std::move(clock)) {}

void Pace::begin(double hertz) {
  begin_ = clock_.now();
  hertz_ = hertz;
  size_ = 1;
  for (auto& event : events_) event->record(stream_);
}

/// Until the next pulse; whether there was none.
bool Pace::rest() {
  if (hertz_ <= 0) return false;
  const double periods = (clock_.now() - begin_) * hertz_;
  if (periods - std::floor(periods) < 0.5) return false;
  stream_.synchronize();
  clock_.sleep_until(begin_ + (std::floor(periods) + 1) / hertz_);
  return true;
}

void Pace::run(double seconds, const std::function<bool()>& stopped,
               const std::function<void(std::uint32_t operations)>& enqueue) {
  // Shorter chunks grow to at most twice this.
  const double shortest = hertz_ > 0 ? std::min(5e-3, 0.25 / hertz_ / 2) : 5e-3;
  std::uint32_t before = 0;  // operations of the chunk before
  do {
    // Else the wait below is not for a chunk of this size, or not for the whole of it.
    const bool timed = !rest() && before == size_;
    const double start = clock_.now();
    enqueue(size_);
    before = size_;
    event(enqueued_).record(stream_);
    event(hertz_ > 0 ? enqueued_ : enqueued_ + 1).synchronize();  // + 1: the one before
    ++enqueued_;
    if (timed && clock_.now() - start < shortest && size_ < 1024) size_ *= 2;
  } while (clock_.now() - begin_ < seconds && !stopped());
}

}  // namespace shakedown::node
