#include "launch/node/soak/injected_faults.hpp"

#include <algorithm>

namespace shakedown::node {
namespace {

class FaultyMemory final : public MemoryKernels {
 public:
  FaultyMemory(const MemoryFault& fault, Device& device, std::unique_ptr<MemoryKernels> kernels)
      : fault_(fault), device_(device), kernels_(std::move(kernels)) {}

  void sweep(const MemoryBlock& block, const Sweep& sweep, MemoryErrors* found,
             Stream& stream) const override {
    if (sweep.check && block.words.count > 0) spoil(block, sweep, stream);
    kernels_->sweep(block, sweep, found, stream);
  }
  std::vector<int> processors() const override { return kernels_->processors(); }

 private:
  void spoil(const MemoryBlock& block, const Sweep& sweep, Stream& stream) const {
    const bool by_processor = fault_.processor != kAnyProcessor;
    if (by_processor && sweep.processor != kAnyProcessor && sweep.processor != fault_.processor)
      return;
    const std::uint64_t end = block.first + block.words.count;
    const bool here = fault_.word >= block.first && fault_.word < end;
    if (times_ == 0 || (!here && !(by_processor && sweep.processor == fault_.processor))) return;
    if (times_ > 0) --times_;
    const std::uint64_t index = here ? fault_.word : block.first;
    const std::uint64_t spoilt =
        word_of(sweep.check->kind, *sweep.check, index) ^ (std::uint64_t{1} << fault_.bit);
    upload<std::uint64_t>(device_, stream, block.words.slice(index - block.first, 1).data,
                          std::span(&spoilt, 1));
  }

  MemoryFault fault_;
  Device& device_;
  std::unique_ptr<MemoryKernels> kernels_;
  mutable int times_ = fault_.times;
};

}  // namespace

std::unique_ptr<MemoryKernels> inject(const MemoryFault& fault, Device& device,
                                      std::unique_ptr<MemoryKernels> kernels) {
  return std::make_unique<FaultyMemory>(fault, device, std::move(kernels));
}

}  // namespace shakedown::node
