#include "resnet/flat_buffer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"

namespace shakedown {
namespace {

std::size_t elements(const Layout& layout) {
  std::size_t end = 0;
  for (const Held& held : layout) end = std::max(end, held.at + held.range.count());
  return end;
}

}  // namespace

Layout packed(const std::vector<Range>& ranges) {
  Layout layout;
  for (const Range& range : ranges) layout.push_back({range, elements(layout)});
  return layout;
}

Layout taking_turns(const std::vector<Range>& ranges, std::size_t places) {
  std::vector<std::size_t> begin(places + 1, 0);
  for (std::size_t place = 0; place < places; ++place) {
    std::size_t largest = 0;
    for (std::size_t i = place; i < ranges.size(); i += places)
      largest = std::max(largest, ranges[i].count());
    begin[place + 1] = begin[place] + largest;
  }
  Layout layout;
  for (std::size_t i = 0; i < ranges.size(); ++i) layout.push_back({ranges[i], begin[i % places]});
  return layout;
}

FlatBuffer::FlatBuffer(Device& device, Stream& stream, DataType type, Layout layout)
    : type_(type), layout_(std::move(layout)), memory_(device, elements(layout_) * size_of(type)) {
  device.zero(memory_.data(), memory_.bytes(), stream);
}

const Held* FlatBuffer::find(Range range) const {
  for (const Held& held : layout_)
    if (held.range.begin <= range.begin && range.end <= held.range.end) return &held;
  return nullptr;
}

View FlatBuffer::at(Range range) const {
  const Held* held = find(range);
  ENSURE(held != nullptr,
         fmt::format("elements {} to {} are not held here", range.begin, range.end));
  return memory_.view(type_).slice(held->at + range.begin - held->range.begin, range.count());
}

}  // namespace shakedown
