// Known words in device memory, filled and checked by one load on one stream.
#pragma once

#include <memory>

#include "common/device.hpp"
#include "common/fault.hpp"
#include "launch/node/soak/known_words.hpp"

namespace shakedown::node {

class WordChecker {
 public:
  explicit WordChecker(Device& device)
      : device_(device),
        stream_(device.make_stream()),
        kernels_(make_word_kernels(device.kind())),
        wrong_(device, sizeof(WordErrors)) {}

  Stream& stream() { return *stream_; }
  void fill(View to, const KnownWords& words) { kernels_->fill(to, words, *stream_); }
  void begin_check() {
    const WordErrors none;
    device_.copy(wrong_.data(), &none, sizeof(none), *stream_);
  }
  void check(ConstView found, const KnownWords& words, std::uint64_t index) {
    kernels_->check(found, words, index, static_cast<WordErrors*>(wrong_.data()), *stream_);
  }
  /// Of all checks since begin_check(); waits for them.
  WordErrors end_check() {
    return download<WordErrors>(device_, *stream_, wrong_.data(), 1).front();
  }
  std::uint64_t word(ConstView from, std::uint64_t index) {
    const ConstView one = from.slice(static_cast<std::size_t>(index), 1);
    return download<std::uint64_t>(device_, *stream_, one.data, 1).front();
  }
  /// A fault for tests.
  void flip_bit(View in, std::uint64_t index) {
    shakedown::flip_bit(device_, *stream_, in, index, 17);
  }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<WordKernels> kernels_;
  Buffer wrong_;
};

}  // namespace shakedown::node
