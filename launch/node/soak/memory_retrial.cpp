#include "launch/node/soak/memory_retrial.hpp"

#include <algorithm>

namespace shakedown::node {
namespace {

constexpr std::uint64_t kRow = 256;            // words around the wrong one that are tried with it
constexpr std::uint64_t kOtherAddresses = 16;  // spread evenly over the memory
constexpr std::uint64_t kFlushed = std::uint64_t{256} << 17;  // words: above twice any cache

}  // namespace

/// Writes the words around an address and reads them back from memory.
class MemoryRetrial::OneWord final : public Retrial {
 public:
  OneWord(MemoryRetrial& kept, const std::vector<MemoryPart>& parts, std::uint64_t index,
          const WordRule& rule, Stream& stream)
      : kept_(kept),
        parts_(parts),
        stream_(stream),
        rule_(rule),
        words_(parts.back().block.first + parts.back().block.words.count) {
    for (std::uint64_t i = 0; i <= kOtherAddresses; ++i)
      places_.push_back((index % words_ + i * (words_ / (kOtherAddresses + 1))) % words_);
  }

  std::optional<bool> wrong(int processor, int address) override {
    const std::uint64_t index = places_[static_cast<std::size_t>(address)];
    const MemoryBlock row = row_at(index);
    auto* const errors = static_cast<MemoryErrors*>(kept_.errors_.data());
    kept_.device_.zero(errors, sizeof(MemoryErrors), stream_);
    Sweep sweep;
    sweep.processor = processor;
    sweep.write = rule_;
    kept_.kernels_.sweep(row, sweep, errors, stream_);
    flush(index + words_ / 2);
    std::swap(sweep.check, sweep.write);
    kept_.kernels_.sweep(row, sweep, errors, stream_);
    const auto result = download<MemoryErrors>(kept_.device_, stream_, errors, 1).front();
    if (result.swept_by_one != 2) return std::nullopt;
    return result.count > 0;
  }

  void restore() {
    for (const std::uint64_t index : places_) {
      Sweep sweep;
      sweep.write = part_at(index).holds;
      if (sweep.write)
        kept_.kernels_.sweep(row_at(index), sweep,
                             static_cast<MemoryErrors*>(kept_.ignored_.data()), stream_);
    }
    stream_.synchronize();
  }

 private:
  const MemoryPart& part_at(std::uint64_t index) const {
    return *(std::upper_bound(
                 parts_.begin(), parts_.end(), index,
                 [](std::uint64_t i, const MemoryPart& part) { return i < part.block.first; }) -
             1);
  }

  MemoryBlock row_at(std::uint64_t index) const {
    const MemoryBlock& block = part_at(index).block;
    const std::uint64_t begin = (index - block.first) / kRow * kRow;
    return {block.words.slice(begin, std::min(kRow, block.words.count - begin)),
            block.first + begin};
  }

  /// Reads as much as pushes anything else out of the caches.
  void flush(std::uint64_t from) {
    const std::uint64_t most = std::min(kFlushed, words_ / 8);
    for (std::uint64_t read = 0; read < most;) {
      const std::uint64_t index = (from + read) % words_ / 2 * 2;
      const MemoryPart& part = part_at(index);
      const std::uint64_t begin = index - part.block.first;
      const std::uint64_t count =
          std::min<std::uint64_t>(part.block.words.count - begin, most - read + 1) / 2 * 2;
      Sweep sweep;
      sweep.check = part.holds;
      if (sweep.check)
        kept_.kernels_.sweep({part.block.words.slice(begin, count), index}, sweep,
                             static_cast<MemoryErrors*>(kept_.ignored_.data()), stream_);
      read += count;
    }
  }

  MemoryRetrial& kept_;
  const std::vector<MemoryPart>& parts_;
  Stream& stream_;
  WordRule rule_;
  std::uint64_t words_;                // of the memory
  std::vector<std::uint64_t> places_;  // of the wrong word, and others
};

MemoryRetrial::MemoryRetrial(Device& device, const SweepKernels& kernels)
    : device_(device),
      kernels_(kernels),
      errors_(device, sizeof(MemoryErrors)),
      ignored_(device, sizeof(MemoryErrors)) {}

Evidence MemoryRetrial::collect(const std::vector<MemoryPart>& parts, const MemoryError& error,
                                const WordRule& rule, Stream& stream, int repeats) {
  device_.zero(ignored_.data(), ignored_.bytes(), stream);
  OneWord word(*this, parts, error.index, rule, stream);
  const std::vector<int> processors = kernels_.processors();
  const Evidence evidence = collect_evidence(word, error.processor, processors,
                                             static_cast<int>(kOtherAddresses), repeats);
  word.restore();
  return evidence;
}

Attempts MemoryRetrial::attempt(const std::vector<MemoryPart>& parts, std::uint64_t index,
                                const WordRule& rule, Stream& stream, int repeats) {
  device_.zero(ignored_.data(), ignored_.bytes(), stream);
  OneWord word(*this, parts, index, rule, stream);
  const Attempts tried = collect_evidence(word, kernels_.processors().front(), {}, 0, repeats).same;
  word.restore();
  return tried;
}

}  // namespace shakedown::node
