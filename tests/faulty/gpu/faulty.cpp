#include "tests/faulty/gpu/faulty.hpp"

#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

namespace shakedown::faulty {
namespace {

/// Where allocations lie in a GPU's memory: each in the first gap that it fits into.
class Memory {
 public:
  void add(void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::size_t at = 0;
    auto next = lying_.begin();
    while (next != lying_.end() && next->first < at + bytes) {
      at = next->first + next->second.bytes;
      ++next;
    }
    lying_.emplace_hint(next, at, Lying{static_cast<unsigned char*>(data), bytes});
  }
  void remove(const void* data) {
    const std::lock_guard lock(mutex_);
    for (auto one = lying_.begin(); one != lying_.end(); ++one) {
      if (one->second.data != data) continue;
      lying_.erase(one);
      return;
    }
  }
  /// Null where nothing lies at this byte.
  unsigned char* find(std::size_t at) {
    const std::lock_guard lock(mutex_);
    auto next = lying_.upper_bound(at);
    if (next == lying_.begin()) return nullptr;
    const auto& [begin, lying] = *std::prev(next);
    return at - begin < lying.bytes ? lying.data + (at - begin) : nullptr;
  }

 private:
  struct Lying {
    unsigned char* data;
    std::size_t bytes;
  };
  std::mutex mutex_;
  std::map<std::size_t, Lying> lying_;  // by where it begins
};

struct Faults {
  Settings settings = read_settings({"product", "memory", "copy", "collective"}, 128, 256);
  Memory memory;
  std::atomic<std::uint64_t> copies{0}, collectives{0};

  const Model& model() const { return settings.model; }
};

Faults* faults = nullptr;  // used until the process is gone
__attribute__((constructor)) void begin() { faults = new Faults; }

/// Null: nothing is to be done here.
Context* context_here() {
  if (faults == nullptr || !faults->settings.here) return nullptr;
  Context* const context = Context::current();
  if (context != nullptr)
    keep_log(faults->settings.log, faults->model().name, [] { return Context::counts(); });
  return context;
}

/// A cell acts at the operations that are wrapped.
void force_cells(Context& context, CUstream stream) {
  for (const CellFault& cell : faults->model().cells) {
    const auto at =
        static_cast<std::size_t>(cell.address * static_cast<double>(context.memory_bytes() - 1));
    if (unsigned char* const data = faults->memory.find(at)) context.force(data, cell, stream);
  }
}

struct HostFlips {
  unsigned char* data;
  std::uint64_t words, count, seed, flip;
};

void flip_on_host(const HostFlips& flips) {
  for (std::uint64_t i = 0; i < flips.count; ++i) {
    unsigned char* const at = flips.data + 8 * (number_format::hash(flips.seed, i) % flips.words);
    const std::uint64_t wrong = load_bits(at, 8) ^ flips.flip;
    std::memcpy(at, &wrong, 8);
  }
  Context::add_host_flips(flips.count);
}

void flip_copy(Context& context, const HostFlips& flips, bool on_device, const CUstream* stream) {
  if (on_device) {
    context.flip_words(flips.data, flips.words, flips.count, flips.seed, flips.flip,
                       stream != nullptr ? *stream : context.own_stream());
    if (stream == nullptr) context.wait_for_own_stream();
  } else if (stream == nullptr) {
    flip_on_host(flips);
  } else {  // it may be a graph's, and run again: its parameters stay
    static const auto launch = reinterpret_cast<decltype(&cuLaunchHostFunc)>(
        next_function("cuLaunchHostFunc", "libcuda.so"));
    launch(
        *stream, [](void* data) { flip_on_host(*static_cast<HostFlips*>(data)); },
        new HostFlips(flips));
  }
}

}  // namespace

void after_product(const Product& product, CUstream stream) {
  Context* const context = context_here();
  if (context == nullptr) return;
  for (const ProductFault& fault : faults->model().products)
    if ((fault.types & product.type) != 0) context->flip(fault, product.result, stream);
  force_cells(*context, stream);
  context->end(Operation::product, stream);
}

void after_copy(void* to, const void* from, std::size_t bytes, const CUstream* stream) {
  if (faults == nullptr || (faults->model().copies.empty() && faults->model().cells.empty()))
    return;
  Context* const context = context_here();
  if (context == nullptr) return;
  const bool to_device = is_on_device(to);
  const char* const way = !to_device ? "d2h" : is_on_device(from) ? "d2d" : "h2d";
  const std::uint64_t copy = faults->copies++;
  const std::uint64_t words = bytes / 8;
  for (const CopyFault& fault : faults->model().copies) {
    if (!fault.way.empty() && fault.way != way) continue;
    const std::uint64_t count =
        happen(faults->model().seed, copy, static_cast<double>(words), fault.rate);
    if (count > 0)
      flip_copy(*context,
                {static_cast<unsigned char*>(to), words, count,
                 number_format::hash(faults->model().seed, copy), fault.flip},
                to_device, stream);
  }
  const CUstream on = stream != nullptr ? *stream : context->own_stream();
  force_cells(*context, on);
  context->end(Operation::copy, on);
  if (stream == nullptr) context->wait_for_own_stream();
}

void after_all_reduce(void* received, std::size_t bytes, CUstream stream) {
  if (faults == nullptr || faults->model().collectives.empty()) return;
  Context* const context = context_here();
  if (context == nullptr) return;
  const std::uint64_t call = faults->collectives++;
  for (const CollectiveFault& fault : faults->model().collectives)
    context->flip_words(received, bytes / 8, happen(faults->model().seed, call, 1, fault.rate),
                        number_format::hash(faults->model().seed, call), fault.flip, stream);
  context->end(Operation::collective, stream);
}

void allocated(void* memory, std::size_t bytes) {
  if (faults != nullptr && !faults->model().cells.empty()) faults->memory.add(memory, bytes);
}
void freed(void* memory) {
  if (faults != nullptr && !faults->model().cells.empty()) faults->memory.remove(memory);
}

}  // namespace shakedown::faulty
