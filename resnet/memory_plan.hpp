// The static plan of a training step's memory: every tensor has a lifetime,
// and tensors whose lifetimes do not overlap share bytes.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

namespace shakedown {

/// Memory that a plan gives a place. Stable: hold a pointer to it, read data() once it is bound.
class Slot {
 public:
  std::size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  /// Null until the plan is bound.
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  friend class MemoryPlan;
  std::string name_;
  std::size_t bytes_ = 0;
  int first_ = 0;
  int last_ = 0;
  std::size_t offset_ = 0;
  void* data_ = nullptr;
};

class MemoryPlan {
 public:
  /// Reserves `bytes` from moment `first` to moment `last`, both included.
  const Slot* reserve(std::string name, std::size_t bytes, int first, int last);

  /// Gives every slot an offset: largest first, each at the lowest free place. Call once.
  void place();
  /// Bytes of the one allocation that holds all slots; after place().
  std::size_t bytes() const { return bytes_; }
  /// Least bytes any placement needs: the largest sum of slots alive at one moment.
  std::size_t lower_bound() const;
  /// Sets the slots' addresses; `base` is aligned to kAlignment.
  void bind(void* base);

  const std::deque<Slot>& slots() const { return slots_; }

  static constexpr std::size_t kAlignment = 512;

 private:
  std::deque<Slot> slots_;
  std::size_t bytes_ = 0;
};

}  // namespace shakedown
