#include "resnet/flat_buffer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/error.hpp"

namespace shakedown {
namespace {

std::size_t elements(const Layout& layout) {
  std::size_t end = 0;
  for (const PlacedRange& placed : layout) end = std::max(end, placed.at + placed.range.count());
  return end;
}

}  // namespace

Layout packed(const std::vector<Range>& ranges) {
  Layout layout;
  for (const Range& range : ranges) layout.push_back({range, elements(layout)});
  return layout;
}

Layout rotating(const std::vector<Range>& ranges, std::size_t buffers) {
  std::vector<std::size_t> begin(buffers + 1, 0);
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    std::size_t largest = 0;
    for (std::size_t i = buffer; i < ranges.size(); i += buffers)
      largest = std::max(largest, ranges[i].count());
    begin[buffer + 1] = begin[buffer] + largest;
  }
  Layout layout;
  for (std::size_t i = 0; i < ranges.size(); ++i) layout.push_back({ranges[i], begin[i % buffers]});
  return layout;
}

FlatBuffer::FlatBuffer(Device& device, Stream& stream, DataType type, Layout layout, Place place)
    : type_(type),
      layout_(std::move(layout)),
      memory_(device, elements(layout_) * size_of(type), place) {
  if (place == Place::device)
    device.zero(memory_.data(), memory_.bytes(), stream);
  else if (memory_.bytes() > 0)
    std::memset(memory_.data(), 0, memory_.bytes());
}

const PlacedRange* FlatBuffer::find(Range range) const {
  for (const PlacedRange& placed : layout_)
    if (placed.range.begin <= range.begin && range.end <= placed.range.end) return &placed;
  return nullptr;
}

View FlatBuffer::at(Range range) const {
  const PlacedRange* placed = find(range);
  ENSURE(placed != nullptr,
         fmt::format("elements {} to {} are not held here", range.begin, range.end));
  return memory_.view(type_).slice(placed->at + range.begin - placed->range.begin, range.count());
}

}  // namespace shakedown
