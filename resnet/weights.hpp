// A network's weights, gradients and running statistics in flat buffers. On one rank alone it holds
// all of each; strategies that shard the memory over ranks declare which parts it holds.
#pragma once

#include <span>
#include <vector>

#include "common/device.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

// Memory for elements of the flat order of parameters: all of them, this rank's part, or blocks
// that share a few buffers in turn.

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

class Peers;

struct WeightsLayout {
  Layout master;     // float32: what is updated on this rank
  Layout compute;    // what the network reads
  Layout gradients;  // what backward writes
  /// Compute weights of a 16-bit type: the network reads the vectors from a buffer of their own,
  /// not from the master weights, of which this rank may hold a part.
  bool packs_vectors = false;
  bool operator==(const WeightsLayout&) const = default;
};
/// Everything, in one piece each.
WeightsLayout whole_weights(const ParameterTable& table);

class Weights {
 public:
  /// Allocated and zeroed. `compute_type` is the type of compute weights and gradients; with
  /// float32 and equal layouts the compute weights are the master weights.
  Weights(Device& device, Stream& stream, const ParameterTable& table, DataType compute_type);
  /// Allocates anew and zeroes; pointers into it become invalid.
  void set_layout(const WeightsLayout& layout);
  const WeightsLayout& layout() const { return layout_; }

  View master(Range range) const { return master_.at(range); }
  View compute(Range range) const { return (has_copy() ? compute_ : master_).at(range); }
  View gradients(Range range) const { return gradients_.at(range); }
  // The whole buffers, stored_count() elements each, where they are held whole.
  View master() const { return master(all()); }
  View compute() const { return compute(all()); }
  View gradients() const { return gradients(all()); }
  View statistics() const { return statistics_.view(DataType::float32); }

  /// The compute weights are a buffer of their own, not the master weights.
  bool has_copy() const { return !compute_.empty(); }
  /// Else blocks take turns in the memory of the compute weights.
  bool computes_with_all() const { return (has_copy() ? compute_ : master_).holds(all()); }
  /// Where this update of master(range) is also to be stored, rounded; empty: nowhere.
  View copy_of(Range range) const;
  DataType type() const { return type_; }

  /// Norms' weights and all biases, which the network reads in float32, one after the other; empty
  /// where it reads them from the other buffers.
  View vectors() const { return vectors_.view(DataType::float32); }
  /// Enqueues: vectors() from the master weights held here, zero for those held elsewhere.
  void pack_vectors(Stream& stream) const;
  /// Enqueues: each rank's vectors() get those whose master weights are held here. `copies` are
  /// vectors() of all ranks, this one's included.
  void push_vectors(Peers& peers, std::span<const View> copies, Stream& stream) const;

  // Where parameter or running statistics number `index` of the table begins.
  void* compute(int index) const { return compute(range_of(index)).data; }
  float* vector(int index) const;
  void* gradient(int index) const { return gradients(range_of(index)).data; }
  float* running_mean(int index) const;
  float* running_variance(int index) const;

  std::size_t bytes() const;

 private:
  Range all() const { return {0, table_.stored_count()}; }
  Range range_of(int index) const;
  void allocate_vectors();
  /// Device memory.
  const std::int64_t* vector_sources() const {
    return static_cast<const std::int64_t*>(vector_sources_.data());
  }

  Device& device_;
  Stream& stream_;
  const ParameterTable& table_;
  DataType type_;
  WeightsLayout layout_;
  FlatBuffer master_;
  FlatBuffer compute_;
  FlatBuffer gradients_;
  Buffer statistics_;
  Buffer vectors_;
  Buffer vector_sources_;  // chunk of the master buffer for each chunk of vectors_, or -1
  std::vector<std::size_t> vector_at_;  // element of vectors_, by parameter
};

}  // namespace shakedown
