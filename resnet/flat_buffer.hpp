// Memory for elements of the flat order of parameters: all of them, this rank's part, or blocks
// that share a few buffers in turn.
#pragma once

#include <vector>

#include "common/device.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

/// Where a range of the flat order lies in a buffer.
struct PlacedRange {
  Range range;
  std::size_t at = 0;  // element of the buffer
  bool operator==(const PlacedRange&) const = default;
};
using Layout = std::vector<PlacedRange>;

/// The ranges in order, without gaps.
Layout packed(const std::vector<Range>& ranges);
/// Range i shares buffer i % buffers, each as large as the largest range in it: double buffering,
/// with two.
Layout rotating(const std::vector<Range>& ranges, std::size_t buffers);

class FlatBuffer {
 public:
  FlatBuffer() = default;
  /// Allocated and zeroed.
  FlatBuffer(Device& device, Stream& stream, DataType type, Layout layout,
             Place place = Place::device);

  /// `range` lies within one held range; InternalError else.
  View at(Range range) const;
  bool holds(Range range) const { return find(range) != nullptr; }
  const Layout& layout() const { return layout_; }
  bool empty() const { return layout_.empty(); }
  /// All of it, in the order in which it lies.
  View memory() const { return memory_.view(type_); }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  const PlacedRange* find(Range range) const;

  DataType type_ = DataType::float32;
  Layout layout_;
  Buffer memory_;
};

}  // namespace shakedown
