#include "launch/node/soak/copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/random.hpp"
#include "launch/node/soak/injected_faults.hpp"

namespace shakedown::node {
namespace {

void fill_on_host(const Buffer& buffer, const KnownWords& words) {
  const View view = buffer.view(DataType::uint64);
  auto* const to = static_cast<std::uint64_t*>(view.data);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < view.count; ++i) to[i] = words.word(i);
}

WordErrors check_on_host(ConstView found, const KnownWords& words) {
  const auto* const from = static_cast<const std::uint64_t*>(found.data);
  unsigned long long count = 0;
  unsigned long long first = WordErrors().first;
#pragma omp parallel for schedule(static) reduction(+ : count) reduction(min : first)
  for (std::size_t i = 0; i < found.count; ++i) {
    if (from[i] == words.word(i)) continue;
    ++count;
    first = std::min<unsigned long long>(first, i);
  }
  return {count, first};
}

}  // namespace

const char* name_of(CopyWay way) {
  constexpr const char* kNames[] = {"host to device", "device to device", "device to host"};
  return kNames[static_cast<int>(way)];
}

CopyLoad::CopyLoad(Device& device, const LoadSettings& load, const CopySettings& settings)
    : device_(device),
      load_(load),
      settings_(settings),
      kernels_(make_word_kernels(device.kind())),
      stream_(device.make_stream()),
      sources_{Buffer(device, settings.bytes, Place::host),
               Buffer(device, settings.bytes, Place::host)},
      near_(device, settings.bytes),
      far_(device, settings.bytes),
      back_(device, settings.bytes, Place::host),
      wrong_(device, sizeof(WordErrors)) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    words_[i].seed = derive_seed(load.seed, i);
    fill_on_host(sources_[i], words_[i]);
  }
}

LoadCount CopyLoad::run(double seconds, std::vector<Mismatch>& found) {
  device_.use_on_this_thread();
  const auto begin = std::chrono::steady_clock::now();
  LoadCount count;
  do {
    const std::size_t source = operations_++ % sources_.size();
    for (const Leg& leg : legs_of(static_cast<int>(source))) {
      const WordErrors wrong = copy_and_check(leg, words_[source]);
      ++count.checked;
      count.bytes += static_cast<double>(leg.to.bytes());
      bytes_[static_cast<std::size_t>(leg.way)] += static_cast<double>(leg.to.bytes());
      if (wrong.count == 0) continue;
      if (count.wrong++ == 0) found.push_back(describe(leg, words_[source], wrong));
      break;  // the next copy would only pass it on
    }
    count.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } while (count.seconds < seconds && !load_.stopped());
  return count;
}

std::array<CopyLoad::Leg, 3> CopyLoad::legs_of(int source) const {
  const View from = sources_[static_cast<std::size_t>(source)].view(DataType::uint64);
  const View near = near_.view(DataType::uint64);
  const View far = far_.view(DataType::uint64);
  const View back = back_.view(DataType::uint64);
  return {{{CopyWay::host_to_device, from, near},
           {CopyWay::device_to_device, near, far},
           {CopyWay::device_to_host, far, back}}};
}

WordErrors CopyLoad::copy_and_check(const Leg& leg, const KnownWords& words) {
  copy(leg.way, leg.to, leg.from, *stream_);
  if (leg.way == CopyWay::device_to_host) {
    stream_->synchronize();
    return check_on_host(leg.to, words);
  }
  const WordErrors none;
  upload<WordErrors>(device_, *stream_, wrong_.data(), std::span(&none, 1));
  kernels_->check(leg.to, words, 0, static_cast<WordErrors*>(wrong_.data()), *stream_);
  return download<WordErrors>(device_, *stream_, wrong_.data(), 1).front();
}

void CopyLoad::copy(CopyWay, View to, ConstView from, Stream& stream) {
  device_.copy(to.data, from.data, to.bytes(), stream);
}

Mismatch CopyLoad::describe(const Leg& leg, const KnownWords& words, const WordErrors& wrong) {
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = operations_ - 1;
  mismatch.index = wrong.first * 8;
  mismatch.where = fmt::format("{}, offset {:#x} of {}", name_of(leg.way), wrong.first * 8,
                               readable_bytes(static_cast<double>(leg.to.bytes())));
  mismatch.expected = words.word(wrong.first);
  mismatch.found =
      download<std::uint64_t>(device_, *stream_, leg.to.slice(wrong.first, 1).data, 1).front();
  mismatch.repeats = settings_.retrials;
  mismatch.reproduced = 0;
  for (int i = 0; i < settings_.retrials; ++i)
    if (copy_and_check(leg, words).count > 0) ++*mismatch.reproduced;
  mismatch.cause = fmt::format("{} of {} words wrong; the same copy again is wrong in {} of {}",
                               wrong.count, leg.to.count, *mismatch.reproduced, settings_.retrials);
  mismatch.action = leg.way == CopyWay::device_to_device
                        ? "reset the GPU; RMA if it comes back"
                        : "compare with the node's other GPUs: wrong on several is the host's "
                          "memory, on this one alone its slot or the GPU";
  return mismatch;
}

std::string CopyLoad::summary() const {
  std::string text;
  for (const CopyWay way :
       {CopyWay::host_to_device, CopyWay::device_to_device, CopyWay::device_to_host})
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(way),
                        readable_bytes(bytes_[static_cast<std::size_t>(way)]));
  return text;
}

std::unique_ptr<CopyLoad> make_copy_load(Device& device, const LoadSettings& load,
                                         const CopySettings& settings) {
  if (load.fault) return inject(CopyFault{}, device, load, settings);
  return std::make_unique<CopyLoad>(device, load, settings);
}

}  // namespace shakedown::node
