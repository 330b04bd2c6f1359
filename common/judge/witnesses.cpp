#include "common/judge/witnesses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/nvml.hpp"
#include "common/statistics.hpp"

namespace shakedown::judge {
namespace {

// A floor is K standard deviations: 1 in 10^9 healthy values of a normal distribution lies beyond,
// and a slow-down of one floor and kAlmostAll deviations is found in each of two looks at 99.5 %.
constexpr double kDeviations = 6;
constexpr double kAlmostAll = 2.576;
constexpr double kLeastSpread = 2e-4;  // of units: what a few of them do not show
constexpr double kOfMedian = 1.57;     // variance of a median of n, in variances of one / n
constexpr std::size_t kUnits = 3;      // of a reference: fewer do not show how units differ
constexpr double kWidest = 3;       // times its floor a limit may be stretched by unsteady samples
constexpr std::size_t kFleet = 16;  // subjects that show how they differ themselves
constexpr std::size_t kMajority = 3;  // subjects of which a majority can be right
constexpr double kApartOnCpu = 1.0;   // other work takes half of a CPU now and then

double rounded_up(double share) { return std::ceil(1e3 * share - 1e-9) / 1e3; }

const Look* first_of(const Series& series) {
  for (const Look& look : series.looks)
    if (std::isfinite(look.value)) return &look;
  return nullptr;
}

/// What measuring again usually changes: of the steadier half, so that one who is unsteady does not
/// excuse itself.
double usual_spread(const Peers& peers) {
  std::vector<double> spreads;
  for (const Series& series : peers.series)
    if (const Look* look = first_of(series)) spreads.push_back(look->spread);
  if (spreads.empty()) return 0;
  const auto middle = spreads.begin() + static_cast<std::ptrdiff_t>((spreads.size() - 1) / 2);
  std::nth_element(spreads.begin(), middle, spreads.end());
  return *middle;
}

std::vector<double> each_look(const Series& series, const std::function<double(const Look&)>& r) {
  std::vector<double> all;
  for (const Look& look : series.looks)
    if (std::isfinite(look.value)) all.push_back(r(look));
  return all;
}

/// Whether samples are too unsteady for the limit's floor.
bool is_wide(const Limit& limit, double floor) {
  return limit.floor > 0 && floor > kWidest * limit.floor;
}

std::string unsteady(const Limit& limit) {
  return fmt::format("samples too unsteady for a floor of {:.1f} %", 100 * limit.floor);
}

/// Of samples that are too unsteady: who is slow beyond even the wider floor is INCONCLUSIVE;
/// nobody is passed by it.
void accuse_only(Testimony& said) {
  said.undecided = said.undecided || said.fails();
  said.may_fail = said.may_fail && said.undecided;
}

// ---- a measured reference ----

class ByReference {
 public:
  ByReference(const Peers& peers, const std::vector<Observation>& all,
              const ReferenceFigure& figure, const References& references)
      : limit_(*peers.limit), observations_(all), figure_(figure) {
    const double look = std::max(figure.look, usual_spread(peers));
    const double between = std::max(figure.between, kLeastSpread);
    const double units = static_cast<double>(std::max<std::size_t>(figure.units, 1));
    const double s = std::sqrt(between * between * (1 + kOfMedian / units) + look * look);
    floor_ = std::max(limit_.floor, rounded_up(kDeviations * s));
    finds_ = floor_ + kAlmostAll * s;
    for (const std::string& each : other_versions(all[peers.observation], figure)) add(each);
    const bool enough = references.named() || figure.units >= kUnits;
    if (!enough) add(fmt::format("of {} units, which do not show their spread", figure.units));
    may_fail_ = remark_.empty() && !limit_.warns;
    wide_ = is_wide(limit_, floor_);
    if (wide_) add(unsteady(limit_));
  }

  /// Why it only warns; empty: it may fail.
  const std::string& remark() const { return remark_; }

  Testimony of(const Series& series) const {
    Testimony said{Witness::reference, figure_.value, floor_, finds_, {}, series.last, may_fail_};
    said.r = each_look(series, [&](const Look& look) { return r_of(look); });
    if (wide_) accuse_only(said);
    said.text =
        fmt::format("reference of {} unit{}, {}{}", figure_.units, figure_.units == 1 ? "" : "s",
                    figure_.date, remark_.empty() ? "" : "; " + remark_);
    return said;
  }

 private:
  void add(const std::string& why) { remark_ += (remark_.empty() ? "" : "; ") + why; }

  /// Of a time that follows the clock, what a lower one explains is no slowness of the GPU.
  double r_of(const Look& look) const {
    const Observation& o = observations_[look.observation];
    const double r = slower_by(o, look.value, figure_.value);
    const double f = o.seen.clock_mhz;
    if (!o.follows_clock() || !(f < figure_.clock_mhz)) return r;
    const ClockLine line = figure_.line.value_or(ClockLine{figure_.value * figure_.clock_mhz, 0});
    return std::min(r, slower_by(o, look.value, line.a / f + line.b));
  }

  const Limit& limit_;
  const std::vector<Observation>& observations_;
  const ReferenceFigure& figure_;
  double floor_ = 0, finds_ = 0;
  bool may_fail_ = true, wide_ = false;
  std::string remark_;
};

/// Of many, one that misses the floor but lies among its peers: the reference is too narrow.
void spare_a_wide_fleet(std::vector<std::vector<Testimony>>& of) {
  std::vector<double> r;
  for (const auto& said : of)
    for (const Testimony& each : said)
      if (each.witness == Witness::reference && !each.r.empty() && std::isfinite(each.r.front()))
        r.push_back(each.r.front());
  if (r.size() < kFleet) return;
  const Summary summary = summarize(r);
  const double apart = summary.median + kDeviations * 1.4826 * summary.mad;
  for (auto& said : of)
    for (Testimony& each : said)
      if (each.witness == Witness::reference && each.fails() && each.may_fail &&
          std::any_of(each.r.begin(), each.r.end(), [&](double one) { return one <= apart; })) {
        each.undecided = true;
        each.text += "; the fleet is wider than the reference";
      }
}

// ---- first principles ----

double value_of_peak(const Observation& o, const std::optional<Board>& board, std::string& by) {
  if (board)
    by = board->known ? board->name : fmt::format("{}, judged as {}", o.board, board->architecture);
  const auto last = o.metric.rfind('/');
  const std::string what = o.metric.substr(last + 1);
  if (o.metric == "setting/sms") return board && board->known ? board->sms : kUnknown;
  if (o.metric.starts_with("product/")) {
    if (!board) return kUnknown;
    if (what == "clock_mhz") return board->base_mhz;
    const auto type = board->flop_per_cycle_sm.find(o.metric.substr(8, last - 8));
    return what == "flop_per_cycle_sm" && type != board->flop_per_cycle_sm.end() ? type->second
                                                                                 : kUnknown;
  }
  if (o.metric.starts_with("memory/") && board && board->known &&
      std::isfinite(board->memory_gbs()))
    return board->memory_gbs();
  // Grace boards have no slot, and what NVML says of one is not their link to the host; of both
  // directions at once no measurement is known.
  if (o.conditions.contains(kConfidential)) return kUnknown;
  const bool by_c2c = o.metric.starts_with("host_link/") && board && board->known &&
                      board->pcie_width == 0 && std::isfinite(board->pcie_gbs);
  if (by_c2c) return o.metric.starts_with("host_link/both/") ? kUnknown : board->pcie_gbs;
  const double nvlinks_gbs = board && board->nvlinks && *board->nvlinks > 0
                                 ? *board->nvlinks * board->nvlink_gbs
                                 : kUnknown;
  if (o.metric.starts_with("link/") && o.path_class == "nvswitch" && std::isfinite(nvlinks_gbs))
    return nvlinks_gbs * (what == "both_ways" ? 2 : 1);
  if (o.metric.starts_with("collective/") && o.of.scope == Scope::node) return nvlinks_gbs;
  if (std::isfinite(o.peak)) by = "what the device reports of itself";
  return o.peak;
}

Testimony by_first_principles(const Series& series, const std::vector<Observation>& all,
                              const Peak& peak, double share) {
  const Observation& o = all[series.looks.front().observation];
  const double least = share * peak.value;
  Testimony said{Witness::first_principles, least, 0};
  said.last = series.last;
  said.r = each_look(series, [&](const Look& look) { return slower_by(o, look.value, least); });
  if (const Look* look = first_of(series))
    said.finds = said.r.back() > 0  // it fails itself
                     ? INFINITY
                     : (1 + kAlmostAll * look->spread) / (1 + said.r.back()) - 1;
  said.text = fmt::format("{:.0f} % of {:.4g} {} ({})", 100 * share, peak.value, o.unit, peak.by);
  return said;
}

// ---- peers ----

class ByPeers {
 public:
  ByPeers(const Peers& peers, const std::vector<Observation>& all, const ReferenceFigure* figure)
      : peers_(peers), observations_(all), cpu_(all[peers.observation].backend == "cpu") {
    const Limit& limit = *peers.limit;
    const double between =
        std::max(figure != nullptr && figure->units >= kUnits ? figure->between : limit.spread,
                 kLeastSpread);
    const double look = usual_spread(peers);
    const double s = std::sqrt(2 * (between * between + look * look));
    floor_ = std::max(limit.floor, rounded_up(kDeviations * s));
    wide_ = !cpu_ && is_wide(limit, floor_);
    finds_ = floor_ + kAlmostAll * s;
    if (cpu_) floor_ = std::max(floor_, kApartOnCpu);
    std::size_t looks = 0;
    for (const Series& series : peers.series) looks = std::max(looks, series.looks.size());
    for (std::size_t look_number = 0; look_number < looks; ++look_number)
      centres_.push_back(centre(look_number));
    if (!compares()) return;
    const bool property = limit.constant && !cpu_;
    unclear_ = !property && (centres_.front().subjects < kMajority || !has_majority());
    for (const Series& series : peers.series) apart_ = apart_ || (unclear_ && slow_in_all(series));
  }

  /// Whether there are any to compare.
  bool compares() const { return !centres_.empty() && centres_.front().subjects >= 2; }

  Testimony of(const Series& series) const {
    const std::size_t n = centres_.front().subjects;
    Testimony said{Witness::peers, kUnknown, floor_, finds_};
    said.last = series.last;
    said.may_fail = !peers_.limit->warns;
    for (std::size_t i = 0; i < series.looks.size(); ++i)
      if (std::isfinite(series.looks[i].value)) {
        said.r.push_back(r_of(series.looks[i], centres_[i]));
        said.usual = centres_[i].value;
      }
    said.undecided = unclear_ ? apart_ : cpu_ && said.fails();
    said.text = fmt::format("its {} peer{}", n - 1, n == 2 ? "" : "s");
    if (wide_) {
      accuse_only(said);
      said.text += "; " + unsteady(*peers_.limit);
    }
    return said;
  }

 private:
  struct Centre {
    double value = kUnknown, clock_mhz = kUnknown;
    std::size_t subjects = 0;
  };

  /// The one of this number, or the last before it; where the best sample counts, the best of all:
  /// else a peer's own noise would hide who is slow.
  const Look* look_at(const Series& series, std::size_t number) const {
    const bool best = peers_.limit->statistic == Statistic::best;
    const Look* found = nullptr;
    for (std::size_t i = 0; i < series.looks.size() && (best || i <= number); ++i) {
      const Look& look = series.looks[i];
      if (!std::isfinite(look.value)) continue;
      if (!best || found == nullptr ||
          slower_by(observations_[look.observation], look.value, found->value) < 0)
        found = &look;
    }
    return found;
  }

  /// The median of the faster half: right while no more than half of them, and of that half, are
  /// slow.
  Centre centre(std::size_t number) const {
    std::vector<const Look*> looks;
    for (const Series& series : peers_.series)
      if (const Look* look = look_at(series, number)) looks.push_back(look);
    if (looks.empty()) return {};
    const bool less = observations_[looks.front()->observation].less_is_better();
    const auto faster = [&](const Look* a, const Look* b) {
      return less ? a->value < b->value : a->value > b->value;
    };
    const std::size_t middle = ((looks.size() + 1) / 2 - 1) / 2;
    std::nth_element(looks.begin(), looks.begin() + static_cast<std::ptrdiff_t>(middle),
                     looks.end(), faster);
    const Look* found = looks[middle];
    return {found->value, observations_[found->observation].seen.clock_mhz, looks.size()};
  }

  double r_of(const Look& look, const Centre& centre) const {
    const Observation& o = observations_[look.observation];
    const double r = slower_by(o, look.value, centre.value);
    const double clocks = centre.clock_mhz / o.seen.clock_mhz;  // above 1: a slower clock explains
    return o.follows_clock() && clocks > 1 ? std::min(r, (1 + r) / clocks - 1) : r;
  }

  bool slow_in_all(const Series& series) const {
    bool any = false;
    for (std::size_t i = 0; i < series.looks.size(); ++i) {
      if (!std::isfinite(series.looks[i].value)) continue;
      if (!(r_of(series.looks[i], centres_[i]) > floor_)) return false;
      any = true;
    }
    return any;
  }

  bool has_majority() const {
    std::size_t alike = 0;
    for (const Series& series : peers_.series)
      if (const Look* look = look_at(series, 0))
        alike += std::fabs(r_of(*look, centres_.front())) <= floor_ ? 1 : 0;
    return 2 * alike > centres_.front().subjects;
  }

  const Peers& peers_;
  const std::vector<Observation>& observations_;
  bool cpu_ = false, wide_ = false;
  bool unclear_ = false, apart_ = false;  // nothing says which side is right; there are two sides
  double floor_ = 0, finds_ = 0;
  std::vector<Centre> centres_;  // of each look
};

}  // namespace

Peak peak_of(const Observation& o, const Boards& boards) {
  const auto board = boards.find(o.pci_device_id, o.board, o.compute_capability);
  Peak peak;
  peak.value = value_of_peak(o, board, peak.by);
  const bool rate = !o.metric.starts_with("collective/") && !o.metric.starts_with("setting/") &&
                    !o.metric.ends_with("/clock_mhz");
  peak.bounds = rate && (!board || board->known);
  return peak;
}

int Testimony::slow() const {
  return static_cast<int>(
      std::count_if(r.begin(), r.end(), [&](double one) { return one > floor; }));
}

bool Testimony::fails() const {
  return last > 0 && std::all_of(r.end() - static_cast<std::ptrdiff_t>(last), r.end(),
                                 [&](double one) { return one > floor; });
}

double Testimony::least() const {
  if (r.empty()) return 0;
  return *std::min_element(fails() ? r.end() - static_cast<std::ptrdiff_t>(last) : r.begin(),
                           r.end());
}

Testimonies hear(const Peers& peers, const std::vector<Observation>& observations,
                 const References& references) {
  const Observation& first = observations[peers.observation];
  const bool gpu = first.backend != "cpu";
  Testimonies heard;
  heard.of.resize(peers.series.size());
  const auto say = [&](const auto& testimony_of) {
    for (std::size_t i = 0; i < peers.series.size(); ++i)
      if (peers.series[i].judges()) heard.of[i].push_back(testimony_of(peers.series[i]));
  };
  if (gpu || references.named()) heard.figure = references.find(first, &heard.missed);
  if (heard.figure != nullptr) {
    const ByReference reference(peers, observations, *heard.figure, references);
    heard.missed = reference.remark();
    say([&](const Series& series) { return reference.of(series); });
    std::size_t judged = 0, failed = 0;
    for (const auto& said : heard.of) {
      judged += said.empty() ? 0 : 1;
      failed += !said.empty() && said.front().fails() ? 1 : 0;
    }
    heard.all_alike = judged > 1 && failed == judged;
    if (!heard.all_alike) spare_a_wide_fleet(heard.of);
  }
  if (std::isfinite(peers.peak.value))
    say([&](const Series& series) {
      return by_first_principles(series, observations, peers.peak, *peers.limit->share);
    });
  const ByPeers alike(peers, observations, heard.figure);
  if (alike.compares()) say([&](const Series& series) { return alike.of(series); });
  return heard;
}

namespace {

constexpr double kHotter_c = 5;

Explanation of_clock(const Observation& o, double r, const Testimony& said,
                     const Context& context) {
  const Circumstances& seen = o.seen;
  const std::uint64_t reasons = seen.reasons.value_or(0);
  if (seen.power_limit_w < 0.99 * context.usual_power_limit_w)
    return {fmt::format("its power limit is {:.0f} W, usual {:.0f} W", seen.power_limit_w,
                        context.usual_power_limit_w),
            Class::config, "set the power limit: nvidia-smi -pl"};
  if ((reasons & throttle::kHeat) != 0)
    return {"thermal throttling lowers the clock", Class::environment,
            "inspect cooling: airflow, heat sink, inlet temperature"};
  if ((reasons & throttle::kHardware) != 0)
    return {"the power supply lowers the clock (hw_slowdown or power brake)", Class::environment,
            "inspect the power supply and its cables, then cooling"};
  if ((reasons & throttle::kPowerCap) != 0) {
    const bool hotter = seen.temperature_c > context.usual_temperature_c + kHotter_c;
    return {hotter ? fmt::format(
                         "the power limit lowers the clock at {:.0f} C, usual {:.0f} C: a hotter "
                         "chip needs more power for its clock",
                         seen.temperature_c, context.usual_temperature_c)
                   : "the power limit lowers the clock",
            Class::environment, "inspect cooling, then compare the power with its neighbours'",
            r <= said.floor};
  }
  if (seen.reasons)
    return {"no throttle reason is reported", Class::config,
            "compare the clock settings: nvidia-smi -q -d CLOCK; unlock with nvidia-smi -rgc"};
  return {"throttle reasons are not reported", std::nullopt,
          "run again where the driver reports throttle reasons"};
}

}  // namespace

Explanation explain(const Observation& o, double r, const Testimony& said, const Limit& limit,
                    const Context& context) {
  if (context.all_alike)
    return {"all devices are alike", Class::config,
            "compare driver, libraries, power limit and clock settings with the reference's"};
  if (o.metric.ends_with("/clock_mhz")) return of_clock(o, r, said, context);
  if (o.backend == "cpu")
    return {"", Class::environment, "run again; if it repeats, look for other work on its cores"};
  if (o.metric.ends_with("/flop_per_cycle_sm") && context.memory_slow)
    return {"its memory is slow, too", Class::hardware,
            "compare memory clock and remapped rows with its neighbours'; if they are alike, RMA"};
  if (o.metric.starts_with("host_link/") && o.path_class.starts_with("far"))
    return {"its host memory is on another NUMA node", Class::config,
            "let the rank use cores of its GPU's NUMA node: launch/mpi --bind none"};
  return {"", limit.class_, limit.action};
}

}  // namespace shakedown::judge
