#include "training/data/input_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shakedown::training {
namespace {

constexpr double kWorthNaming = 0.02;  // of the time
constexpr double kBusy = 0.5;          // of the time: what is less busy limits nothing

/// Every member of InputTimes but the stall.
template <class Times, class Visit>
void for_each_sum(Times& times, Visit&& visit) {
  visit(times.stages.open_s);
  visit(times.stages.read_s);
  visit(times.stages.decode_s);
  visit(times.stages.augment_s);
  visit(times.copy_s);
  visit(times.device_decode_s);
  visit(times.images);
  visit(times.device_images);
}

struct Stage {
  const char* name;
  double seconds;
};

/// A packed file is read sequentially with --cache alone.
std::string cure_of_reading(const InputSetup& setup) {
  if (!setup.packed)
    return std::string("--pack FILE, which --train-dir FILE --cache reads in windows of 8 MiB") +
           (setup.cached ? "" : "; --cache alone keeps the files in memory once read");
  return setup.cached ? "a faster file system, or memory for the whole packed file"
                      : "--cache reads the packed file in windows of 8 MiB";
}

std::string cure_of_decoding(const InputSetup& setup) {
  std::string cure = setup.workers < setup.cores
                         ? fmt::format("more --workers (this rank may use {} cores)", setup.cores)
                         : fmt::format("more cores than this rank's {}", setup.cores);
  if (setup.decoder == "cpu" && setup.workers < kWorkersLikeEngines)
    cure += ", --decoder nvjpeg on a GPU with JPEG engines";
  return cure + " or smaller images";
}

}  // namespace

StageTimes& operator+=(StageTimes& a, const StageTimes& b) {
  a.open_s += b.open_s;
  a.read_s += b.read_s;
  a.decode_s += b.decode_s;
  a.augment_s += b.augment_s;
  return a;
}

InputTimes operator+(InputTimes a, const InputTimes& b) {
  a.stall_s += b.stall_s;
  a.stages += b.stages;
  a.copy_s += b.copy_s;
  a.device_decode_s += b.device_decode_s;
  a.images += b.images;
  a.device_images += b.device_images;
  return a;
}

InputTimes operator-(const InputTimes& a, const InputTimes& b) {
  InputTimes negative = b;
  negative.stall_s = -b.stall_s;
  for_each_sum(negative, [](double& value) { value = -value; });
  return a + negative;
}

InputTimes over_ranks(const InputTimes& mine, const MpiSession& session) {
  InputTimes all = mine;
  const auto stalls = session.all_gather(mine.stall_s);
  all.stall_s = *std::max_element(stalls.begin(), stalls.end());
  for_each_sum(all, [&](double& value) {
    const auto values = session.all_gather(value);
    value = 0;
    for (double one : values) value += one;
  });
  return all;
}

std::string input_advice(const InputTimes& times, const InputSetup& setup, double seconds,
                         int ranks) {
  if (times.stall_s <= kWorthNaming * seconds || times.images == 0) return "";
  const std::array stages{
      Stage{"opening files", times.stages.open_s}, Stage{"reading", times.stages.read_s},
      Stage{"decoding", times.stages.decode_s}, Stage{"augmentation", times.stages.augment_s}};
  const auto longest = std::max_element(stages.begin(), stages.end(),
                                        [](auto& a, auto& b) { return a.seconds < b.seconds; });
  double workers_s = 0;
  for (const Stage& stage : stages) workers_s += stage.seconds;
  workers_s /= setup.workers;

  const std::string stall = fmt::format("input: training waited for data {:.1f} % of the time; ",
                                        100 * times.stall_s / seconds);
  const auto rate = [&](double busy_s) { return times.images / busy_s * ranks; };
  const double device_s = times.device_decode_s + times.copy_s;
  const double busy = std::max(device_s, workers_s) / (seconds * ranks);
  if (busy < kBusy)
    return stall + fmt::format(
                       "the workers and copies were busy only {:.0f} % of it, so it was for "
                       "the first batches of an epoch, or for cores that others use",
                       100 * busy);
  if (device_s > workers_s) {
    if (times.copy_s > times.device_decode_s)
      return stall + fmt::format(
                         "copies to the device limit it to {:.0f} images/s: check the "
                         "host link, or use smaller images",
                         rate(device_s));
    return stall + fmt::format(
                       "decoding by {} limits it to {:.0f} images/s: a --decoder-share "
                       "below {:.0f} leaves more to the workers",
                       setup.decoder, rate(device_s), 100 * setup.device_share);
  }
  const bool reads = longest < stages.begin() + 2;
  return stall + fmt::format(
                     "{} limits it ({:.0f} % of the time of {} worker{} per rank, {:.0f} images/s "
                     "at most): {}",
                     longest->name, 100 * longest->seconds / workers_s / setup.workers,
                     setup.workers, setup.workers == 1 ? "" : "s", rate(workers_s),
                     reads ? cure_of_reading(setup) : cure_of_decoding(setup));
}

}  // namespace shakedown::training
