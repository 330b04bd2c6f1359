// One sample, from its encoded image to the pixels that the network sees.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/image_source.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {

/// One per thread: it keeps its working memory. The source must outlive it.
class SampleReader {
 public:
  SampleReader(const ImageSource& source, const TransformSettings& settings)
      : source_(source), transform_(settings) {}

  /// Reads, decodes and transforms the sample into `out`, image_size x image_size x 3, and returns
  /// its label. What is random is drawn from `random_seed` alone. Throws UsageError that names the
  /// image and what is wrong with it.
  std::int32_t read(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out);

  const StageTimes& times() const { return times_; }

 private:
  const ImageSource& source_;
  Transform transform_;
  StageTimes times_;
  std::vector<std::uint8_t> encoded_;
};

}  // namespace shakedown::training
