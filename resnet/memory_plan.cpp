#include "resnet/memory_plan.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "common/ensure.hpp"

namespace shakedown {
namespace {

std::size_t aligned(std::size_t bytes) {
  return (bytes + MemoryPlan::kAlignment - 1) / MemoryPlan::kAlignment * MemoryPlan::kAlignment;
}

}  // namespace

const Slot* MemoryPlan::reserve(std::string name, std::size_t bytes, int first, int last) {
  ENSURE(first <= last, "a slot that ends before it begins: " + name);
  Slot& slot = slots_.emplace_back();
  slot.name_ = std::move(name);
  slot.bytes_ = bytes;
  slot.first_ = first;
  slot.last_ = last;
  return &slot;
}

void MemoryPlan::place() {
  std::vector<Slot*> order;
  for (Slot& slot : slots_) order.push_back(&slot);
  std::stable_sort(order.begin(), order.end(),
                   [](const Slot* a, const Slot* b) { return a->bytes_ > b->bytes_; });
  std::vector<const Slot*> placed;  // by offset
  for (Slot* slot : order) {
    std::size_t offset = 0;
    for (const Slot* other : placed) {
      if (other->last_ < slot->first_ || slot->last_ < other->first_) continue;
      if (offset + slot->bytes_ <= other->offset_) break;  // fits into the gap before it
      offset = std::max(offset, aligned(other->offset_ + other->bytes_));
    }
    slot->offset_ = offset;
    bytes_ = std::max(bytes_, aligned(offset + slot->bytes_));
    const auto at =
        std::upper_bound(placed.begin(), placed.end(), slot,
                         [](const Slot* a, const Slot* b) { return a->offset_ < b->offset_; });
    placed.insert(at, slot);
  }
}

std::size_t MemoryPlan::lower_bound() const {
  std::map<int, std::ptrdiff_t> change;  // moment -> bytes that appear less bytes that go
  for (const Slot& slot : slots_) {
    change[slot.first_] += static_cast<std::ptrdiff_t>(aligned(slot.bytes_));
    change[slot.last_ + 1] -= static_cast<std::ptrdiff_t>(aligned(slot.bytes_));
  }
  std::ptrdiff_t alive = 0;
  std::ptrdiff_t most = 0;
  for (const auto& [moment, bytes] : change) most = std::max(most, alive += bytes);
  return static_cast<std::size_t>(most);
}

void MemoryPlan::bind(void* base) {
  for (Slot& slot : slots_) slot.data_ = static_cast<std::byte*>(base) + slot.offset_;
}

}  // namespace shakedown
