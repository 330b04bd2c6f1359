#include "resnet/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/communicator.hpp"
#include "common/ensure.hpp"
#include "common/kernels.hpp"

namespace shakedown {

WeightsLayout whole_weights(const ParameterTable& table) {
  const Layout all{{{0, table.stored_count()}, 0}};
  return {all, all, all, false};
}

Weights::Weights(Device& device, Stream& stream, const ParameterTable& table, DataType compute_type)
    : device_(device),
      stream_(stream),
      table_(table),
      type_(compute_type),
      statistics_(device, table.statistics_count() * sizeof(float)) {
  device.zero(statistics_.data(), statistics_.bytes(), stream);
  set_layout(whole_weights(table));
}

void Weights::set_layout(const WeightsLayout& layout) {
  layout_ = layout;
  for (FlatBuffer* buffer : {&master_, &compute_, &gradients_})
    *buffer = FlatBuffer();  // freed before the new ones are allocated
  master_ = FlatBuffer(device_, stream_, DataType::float32, layout.master);
  if (type_ != DataType::float32 || layout.compute != layout.master)
    compute_ = FlatBuffer(device_, stream_, type_, layout.compute);
  gradients_ = FlatBuffer(device_, stream_, type_, layout.gradients);
  allocate_vectors();
}

void Weights::allocate_vectors() {
  vectors_ = Buffer();
  vector_sources_ = Buffer();
  if (type_ == DataType::float32 || !layout_.packs_vectors) return;
  vector_at_.assign(table_.parameters().size(), 0);
  std::vector<std::int64_t> sources;
  for (std::size_t i = 0; i < table_.parameters().size(); ++i) {
    const Parameter& p = table_.parameters()[i];
    if (p.shape.size() != 1) continue;
    vector_at_[i] = sources.size() * kFlatAlignment;
    for (std::size_t at = p.offset; at < p.offset + p.stored; at += kFlatAlignment) {
      const Range chunk{at, at + kFlatAlignment};
      sources.push_back(-1);
      for (const PlacedRange& placed : layout_.master)
        if (placed.range.begin <= chunk.begin && chunk.end <= placed.range.end)
          sources.back() =
              static_cast<std::int64_t>((placed.at + at - placed.range.begin) / kFlatAlignment);
    }
  }
  vectors_ = Buffer(device_, sources.size() * kFlatAlignment * sizeof(float));
  device_.zero(vectors_.data(), vectors_.bytes(), stream_);
  vector_sources_ = Buffer(device_, sources.size() * sizeof(std::int64_t));
  upload<std::int64_t>(device_, stream_, vector_sources_.data(), sources);
}

void Weights::pack_vectors(Stream& stream) const {
  if (vectors_.bytes() == 0) return;
  device_.kernels().gather_chunks(vectors(), master_.memory(), vector_sources(), stream);
}

void Weights::push_vectors(Peers& peers, std::span<const View> copies, Stream& stream) const {
  peers.push_chunks(copies, master_.memory(), vector_sources(), stream);
}

View Weights::copy_of(Range range) const {
  return has_copy() && computes_with_all() ? compute_.at(range) : View();
}

Range Weights::range_of(int index) const {
  const Parameter& p = table_.parameters().at(static_cast<std::size_t>(index));
  return {p.offset, p.offset + p.stored};
}

float* Weights::vector(int index) const {
  if (type_ == DataType::float32) return static_cast<float*>(compute(index));
  if (vectors_.bytes() == 0) return static_cast<float*>(master(range_of(index)).data);
  return static_cast<float*>(vectors_.data()) + vector_at_.at(static_cast<std::size_t>(index));
}

float* Weights::running_mean(int index) const {
  return static_cast<float*>(statistics_.data()) +
         table_.statistics().at(static_cast<std::size_t>(index)).offset;
}

float* Weights::running_variance(int index) const {
  return running_mean(index) + table_.statistics().at(static_cast<std::size_t>(index)).channels;
}

std::size_t Weights::bytes() const {
  return master_.bytes() + compute_.bytes() + gradients_.bytes() + statistics_.bytes() +
         vectors_.bytes();
}

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
