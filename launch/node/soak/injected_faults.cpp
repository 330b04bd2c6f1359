#include "launch/node/soak/injected_faults.hpp"

#include "common/program.hpp"

namespace shakedown::node {
namespace {

class FaultyMemory final : public SweepKernels {
 public:
  FaultyMemory(const MemoryFault& fault, Device& device, std::unique_ptr<SweepKernels> kernels)
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
  std::unique_ptr<SweepKernels> kernels_;
  mutable int times_ = fault_.times;
};

class FaultyCopies final : public CopyLoad {
 public:
  FaultyCopies(const CopyFault& fault, Device& device, const LoadSettings& load,
               const CopySettings& settings)
      : CopyLoad(device, load, settings), fault_(fault) {}

 protected:
  void copy(CopyWay way, View to, ConstView from, Stream& stream) override {
    CopyLoad::copy(way, to, from, stream);
    if (way != fault_.way || fault_.times == 0) return;
    if (fault_.times > 0) --fault_.times;
    flip_bit(device(), stream, to, fault_.word, fault_.bit);
  }

 private:
  CopyFault fault_;
};

class FaultyProbe final : public Probe {
 public:
  FaultyProbe(const ProbeFault& fault, std::unique_ptr<Probe> probe)
      : fault_(fault), probe_(std::move(probe)) {}

  std::vector<ProbeKind> kinds() const override { return probe_->kinds(); }
  std::vector<int> processors() const override { return probe_->processors(); }
  std::vector<ProbeAnswer> run(const ProbeTask& task, std::span<const int> processors,
                               Stream& stream) override {
    auto answers = probe_->run(task, processors, stream);
    for (ProbeAnswer& answer : answers) {
      if (answer.processor != fault_.processor || fault_.times == 0) continue;
      if (fault_.times > 0) --fault_.times;
      answer.hashes[7] ^= 1;
    }
    return answers;
  }

 private:
  ProbeFault fault_;
  std::unique_ptr<Probe> probe_;
};

}  // namespace

std::unique_ptr<SweepKernels> inject(const MemoryFault& fault, Device& device,
                                     std::unique_ptr<SweepKernels> kernels) {
  return std::make_unique<FaultyMemory>(fault, device, std::move(kernels));
}

std::unique_ptr<CopyLoad> inject(const CopyFault& fault, Device& device, const LoadSettings& load,
                                 const CopySettings& settings) {
  return std::make_unique<FaultyCopies>(fault, device, load, settings);
}

std::unique_ptr<Probe> inject(const ProbeFault& fault, std::unique_ptr<Probe> probe) {
  return std::make_unique<FaultyProbe>(fault, std::move(probe));
}

}  // namespace shakedown::node
