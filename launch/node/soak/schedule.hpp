// What a soak does when: a sweep of all loads, then phases of two seconds, each of one load or of
// all, over and over.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/record.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

enum class LoadKind { products, probes, memory, copies, collectives };
inline constexpr std::array kLoads{LoadKind::products, LoadKind::probes, LoadKind::memory,
                                   LoadKind::copies, LoadKind::collectives};
inline constexpr int kLoadKinds = kLoads.size();
const char* name_of(LoadKind kind);

enum class Shape { sweep, steady, square, mixed };
inline constexpr std::array kShapes{Shape::sweep, Shape::steady, Shape::square, Shape::mixed};
const char* name_of(Shape shape);

/// Of all loads, or shapes.
template <class List>
std::vector<std::string> names_of(const List& list) {
  std::vector<std::string> names;
  for (const auto each : list) names.emplace_back(name_of(each));
  return names;
}

/// One window's work.
struct Phase {
  Shape shape = Shape::steady;
  std::vector<LoadKind> loads;      // at the same time
  std::optional<ProductType> type;  // of the products, if they are one
  double pulse_hertz = 0;           // of the products; 0: steady
  double share = 1;                 // of a window's seconds; 0: as short as the load can be

  /// "steady product bf16", "square product fp16 2 Hz", "mixed product fp8, memory, copies".
  std::string name() const;
  bool has(LoadKind kind) const;
};

bool any_has(const std::vector<Phase>& phases, LoadKind kind);

/// The phases of one cycle: each type's products, fastest first; each other load; then one square
/// wave and one mixture of all but the probes, which need each SM for themselves; types and
/// frequencies change from cycle to cycle. Of a lone rank, which has no collectives (`alone`),
/// products have 83 % of the time. The first cycle begins with a sweep: each load alone, products
/// as few as a comparison needs, so that what is always wrong is found within seconds; every cycle
/// does where no other shape has the load. Empty where nothing is left to do.
std::vector<Phase> phases_of_cycle(const std::vector<std::string>& shapes,
                                   const std::vector<std::string>& loads,
                                   const std::vector<ProductType>& types, bool alone, int cycle);

/// Seconds of a window of share 1: at most 2, and so few that there are two cycles.
double window_seconds(double total_s, const std::vector<Phase>& cycle);

/// Makes square waves that are too slow for a window faster: each has two periods in it at least.
void fit_pulses(std::vector<Phase>& phases, double window_s);

// When operations are enqueued on a stream: chunk by chunk, steadily or as a square wave.

/// The host's clock, in seconds. Tests have one of their own.
struct PaceClock {
  std::function<double()> now;
  std::function<void(double until)> sleep_until;
};
PaceClock steady_clock();

/// One chunk is under way while the next one is enqueued; of a square wave none is, so that what is
/// on ends with the pulse. Chunks grow until one takes some milliseconds; never beyond a quarter of
/// a period.
class Pace {
 public:
  Pace(Stream& stream, std::array<std::unique_ptr<Event>, 2> events,
       PaceClock clock = steady_clock());

  /// Time is counted from here. Each period of `hertz` begins with its pulse; 0: always on.
  void begin(double hertz);
  /// `enqueue(operations)` again and again, once at least, until `seconds` after begin().
  void run(double seconds, const std::function<bool()>& stopped,
           const std::function<void(std::uint32_t operations)>& enqueue);
  /// Operations of the next chunk.
  std::uint32_t size() const { return size_; }

 private:
  bool rest();
  Event& event(std::uint64_t chunk) { return *events_[chunk % events_.size()]; }

  Stream& stream_;
  std::array<std::unique_ptr<Event>, 2> events_;  // ends of chunks
  PaceClock clock_;
  double begin_ = 0;
  double hertz_ = 0;
  std::uint32_t size_ = 1;
  std::uint64_t enqueued_ = 0;  // chunks
};

// Who a rank is, in a soak's verdicts.

/// Who the ranks are.
struct RankIdentity {
  std::string host;
  std::string uuid;    // empty on cpu
  std::string serial;  // empty: not known
  std::string model;
  std::string stalled = "";    // calls of the driver that did not return in time
  bool remap_pending = false;  // memory waits for a reset to be replaced
  bool lacks_ecc = false;      // or it is off
};

/// A verdict of this check on the rank's GPU, or on the rank where it has none.
inline Verdict on_rank(int rank, const RankIdentity& identity, const char* check) {
  Verdict verdict;
  verdict.check = check;
  verdict.scope = identity.uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = identity.uuid.empty() ? std::to_string(rank) : identity.uuid;
  verdict.hosts = {identity.host};
  return verdict;
}

/// "rank 3 on n017, serial 1652923".
inline std::string place_of(int rank, const RankIdentity& identity) {
  return fmt::format("rank {} on {}{}", rank, identity.host,
                     identity.serial.empty() ? "" : ", serial " + identity.serial);
}

}  // namespace shakedown::node
