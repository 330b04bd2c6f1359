#include "launch/node/soak/memory_test.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "common/program.hpp"

namespace shakedown::node {
namespace {

constexpr std::size_t kReported = 4;  // mismatches of a call, of which the first one is placed
constexpr std::size_t kLeastPiece = std::size_t{16} << 20;
constexpr double kLongestSleep = 0.1;  // of a call's time, for retention

std::size_t whole_groups(double bytes) {
  return static_cast<std::size_t>(bytes) / 4096 * 4096 + 4096;
}

/// "bit 17", "bits 0, 17", "41 bits".
std::string bits_text(std::uint64_t difference) {
  const int count = std::popcount(difference);
  if (count > 8) return fmt::format("{} bits", count);
  std::vector<int> bits;
  for (int bit = 0; bit < 64; ++bit)
    if ((difference >> bit & 1U) != 0) bits.push_back(bit);
  return fmt::format("{} {}", count == 1 ? "bit" : "bits", fmt::join(bits, ", "));
}

/// Parts of block_bytes at most, numbered through all buffers.
std::vector<MemoryPart> parts_of(const TestedMemory& memory, std::size_t block_bytes) {
  const std::size_t most = std::max<std::size_t>(block_bytes / 16 * 2, 2);  // words
  std::vector<MemoryPart> parts;
  std::uint64_t first = 0;
  for (const Buffer& buffer : memory.buffers) {
    const View words = buffer.view(DataType::uint64);
    for (std::size_t at = 0; at < words.count; at += most) {
      const View block = words.slice(at, std::min(most, words.count - at));
      parts.push_back({{block, first}, {}});
      first += block.count;
    }
  }
  return parts;
}

}  // namespace

TestedMemory allocate_tested(Device& device, const MemoryTestSettings& settings) {
  const MemoryInfo info = device.memory();
  TestedMemory memory{{}, 0, info.free_bytes, info.total_bytes};
  const std::size_t needed = whole_groups(
      device.kind() == BackendKind::gpu ? settings.share * static_cast<double>(info.free_bytes)
                                        : static_cast<double>(settings.host_bytes));
  std::size_t piece = needed <= info.free_bytes ? needed : 0;
  while (piece > 0 && memory.bytes < needed) {
    piece = std::min(piece, needed - memory.bytes);
    try {
      memory.buffers.emplace_back(device, piece);
      memory.bytes += piece;
    } catch (const OutOfMemory&) {
      piece = piece > kLeastPiece ? whole_groups(static_cast<double>(piece) / 2) : 0;
    }
  }
  if (memory.bytes < needed)
    throw InconclusiveError(
        fmt::format("memory: {} of {} needed for the test could be allocated, of {} free",
                    readable_bytes(static_cast<double>(memory.bytes)),
                    readable_bytes(static_cast<double>(needed)),
                    readable_bytes(static_cast<double>(info.free_bytes))));
  return memory;
}

MemoryTest::MemoryTest(Device& device, const LoadSettings& load, const MemoryTestSettings& settings,
                       std::unique_ptr<SweepKernels> kernels)
    : device_(device),
      load_(load),
      settings_(settings),
      kernels_(std::move(kernels)),
      stream_(device.make_stream()),
      done_{device.make_event(), device.make_event()},
      errors_(device, sizeof(MemoryErrors)),
      retrial_(device, *kernels_, *stream_, parts_),
      memory_(allocate_tested(device, settings)),
      parts_(parts_of(memory_, settings.block_bytes)),
      march_(march_of(settings.patterns, load.seed, 0)),
      placed_(device.kind() == BackendKind::gpu ? "SM" : "core") {
  device.zero(errors_.data(), errors_.bytes(), *stream_);
}

LoadCount MemoryTest::run(double seconds, std::vector<Mismatch>& found) {
  device_.use_on_this_thread();
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  LoadCount count;
  if (std::exchange(first_call_, false) && available_share() < settings_.least_share)
    found.push_back(too_little());
  if (waits()) {
    const std::chrono::duration<double> most(kLongestSleep * seconds);
    std::this_thread::sleep_until(
        std::min(ready_, begin + std::chrono::duration_cast<Clock::duration>(most)));
  }
  while (!waits()) {
    sweep_next(count);
    const bool enough = elapsed() >= seconds && count.checked > 0;  // writing alone shows nothing
    if (enough || load_.stopped()) break;
  }
  stream_->synchronize();
  count.wrong = collect(found);
  count.seconds = elapsed();
  return count;
}

bool MemoryTest::waits() const {
  return march_[element_].waits && part_ == 0 && Clock::now() < ready_;
}

void MemoryTest::sweep_next(LoadCount& count) {
  Event& before_last = *done_[sweeps_ % 2];
  if (sweeps_ >= 2) before_last.synchronize();  // else a call would enqueue without end
  const MarchElement& element = march_[element_];
  MemoryPart& part = parts_[element.descending ? parts_.size() - 1 - part_ : part_];
  kernels_->sweep(part.block,
                  {element.check, element.write, element.descending,
                   static_cast<std::uint32_t>(pass_ * march_.size() + element_), kAnyProcessor},
                  static_cast<MemoryErrors*>(errors_.data()), *stream_);
  before_last.record(*stream_);
  ++sweeps_;
  if (element.check) {
    count.checked += part.block.words.count;
    count.bytes += static_cast<double>(part.block.words.bytes());
  }
  if (element.write) part.holds = element.write;
  advance();
}

void MemoryTest::advance() {
  if (++part_ < parts_.size()) return;
  part_ = 0;
  ready_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(settings_.retention_s));
  if (++element_ < march_.size()) return;
  element_ = 0;
  march_ = march_of(settings_.patterns, load_.seed, ++pass_);
}

std::uint64_t MemoryTest::collect(std::vector<Mismatch>& found) {
  const auto errors = download<MemoryErrors>(device_, *stream_, errors_.data(), 1).front();
  if (errors.count == 0) return 0;
  const std::span<const MemoryError> listed(
      errors.list, std::min<std::size_t>(errors.count, MemoryErrors::kListed));
  const std::string findings = findings_text(listed, errors.count);
  for (const MemoryError& error : listed.first(std::min(listed.size(), kReported))) {
    const auto march = march_of(settings_.patterns, load_.seed, error.sweep / march_.size());
    const MarchElement& element = march[error.sweep % march.size()];
    found.push_back(describe(error, element, findings));
    // An immediate retrial would find it right where it was left alone.
    if (error.index != listed.front().index || element.pattern == MemoryPattern::retention)
      continue;
    placed_.place(found, found.size() - 1,
                  retrial_.collect(error, *element.check, settings_.retrials), error.processor,
                  {{"index", error.index},
                   {"kind", static_cast<int>(element.check->kind)},
                   {"seed", element.check->seed},
                   {"flip", element.check->flip}});
  }
  device_.zero(errors_.data(), errors_.bytes(), *stream_);
  return errors.count;
}

Mismatch MemoryTest::describe(const MemoryError& error, const MarchElement& element,
                              const std::string& findings) {
  Mismatch mismatch;
  mismatch.load = "memory";
  mismatch.operation = sweeps_;
  mismatch.where = fmt::format("offset {:#x} of {}", error.index * 8,
                               readable_bytes(static_cast<double>(memory_.bytes)));
  mismatch.index = error.index * 8;
  mismatch.expected = error.expected;
  mismatch.found = error.found;
  mismatch.sm = error.processor;
  std::string cause =
      fmt::format("{}: {} wrong, {} when read again; in all {}", name_of(element.pattern),
                  bits_text(error.expected ^ error.found),
                  error.found_again == error.expected ? "right" : "wrong", findings);
  if (element.pattern == MemoryPattern::retention)
    cause += fmt::format("; after {:g} s left alone", settings_.retention_s);
  mismatch.conclude(failure(Class::hardware, std::move(cause), kRemapRows));
  return mismatch;
}

/// What others hold is not tested: a clean pass would not be one of this memory.
Mismatch MemoryTest::too_little() const {
  Mismatch mismatch;
  mismatch.load = "memory";
  mismatch.where = "that is not tested";
  mismatch.conclude(undecided(
      Class::environment,
      fmt::format("only {:.1f} % of what this program does not hold of {} are tested, {:.0f} % "
                  "are needed; {:.1f} % were free",
                  100 * available_share(), readable_bytes(static_cast<double>(memory_.total_bytes)),
                  100 * settings_.least_share, 100 * settings_.free_share),
      "end the processes that hold the rest (nvidia-smi), and run again"));
  return mismatch;
}

std::uint64_t MemoryTest::confer(const MpiSession& jurors, std::vector<Mismatch>& found) {
  const auto attempt = [this](const Json& task) {
    const WordRule rule{static_cast<WordKind>(task["kind"].get<int>()),
                        task["seed"].get<std::uint64_t>(), task["flip"].get<std::uint64_t>()};
    MemoryError error;
    error.index = task["index"].get<std::uint64_t>();
    error.processor = kernels_->processors().front();
    return retrial_.collect(error, rule, settings_.retrials, false).same;
  };
  placed_.confer(jurors, attempt, found);
  return 0;
}

MemoryCoverage MemoryTest::coverage() const {
  const auto bytes = static_cast<double>(memory_.bytes);
  const double parts = static_cast<double>(part_) / static_cast<double>(parts_.size());
  MemoryCoverage coverage;
  if (device_.kind() == BackendKind::gpu)
    coverage.share = bytes / static_cast<double>(memory_.total_bytes);
  coverage.passes = static_cast<double>(pass_);
  for (std::size_t i = 1; i <= element_; ++i)
    if (march_[i].pattern != march_[i - 1].pattern) ++coverage.patterns_done;
  coverage.patterns = static_cast<double>(settings_.patterns.size());
  coverage.of_pass = (static_cast<double>(element_) + parts) / static_cast<double>(march_.size());
  coverage.bytes = bytes;
  return coverage;
}

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

}  // namespace

std::unique_ptr<SweepKernels> inject(const MemoryFault& fault, Device& device,
                                     std::unique_ptr<SweepKernels> kernels) {
  return std::make_unique<FaultyMemory>(fault, device, std::move(kernels));
}

std::unique_ptr<MemoryTest> make_memory_test(Device& device, const LoadSettings& load,
                                             const MemoryTestSettings& settings) {
  std::unique_ptr<SweepKernels> kernels = make_sweep_kernels(device);
  if (load.fault == FaultKind::memory) kernels = inject(MemoryFault{}, device, std::move(kernels));
  return std::make_unique<MemoryTest>(device, load, settings, std::move(kernels));
}

namespace {

constexpr std::uint64_t kOnes = ~std::uint64_t{0};

/// What all words hold in turn.
std::vector<WordRule> rules_of(MemoryPattern pattern, std::uint64_t seed) {
  switch (pattern) {
    case MemoryPattern::random:
      return {{WordKind::random, seed, 0},
              {WordKind::random, seed, kOnes},
              {WordKind::random, seed, 0}};
    case MemoryPattern::address:
      return {{WordKind::address, 0, 0}, {WordKind::address, 0, kOnes}, {WordKind::address, 0, 0}};
    case MemoryPattern::inversions: {
      std::vector<WordRule> rules;
      for (const std::uint64_t background :
           {0x0U, 0x55555555U, 0x33333333U, 0x0F0F0F0FU, 0x00FF00FFU})
        for (const std::uint64_t flip : {std::uint64_t{0}, kOnes})
          rules.push_back({WordKind::constant, 0, (background << 32 | background) ^ flip});
      return rules;
    }
    case MemoryPattern::walking_ones:
    case MemoryPattern::walking_zeros: {
      std::vector<WordRule> rules;
      for (std::uint64_t step = 0; step < 64; ++step)
        rules.push_back(
            {WordKind::walking, step, pattern == MemoryPattern::walking_ones ? 0 : kOnes});
      return rules;
    }
    case MemoryPattern::retention:
      return {{WordKind::random, ~seed, 0}, {WordKind::random, ~seed, kOnes}};
  }
  throw InternalError("a memory pattern without rules");
}

}  // namespace

const char* name_of(MemoryPattern pattern) {
  constexpr const char* kNames[] = {"random",       "address in address", "moving inversions",
                                    "walking ones", "walking zeros",      "retention"};
  return kNames[static_cast<int>(pattern)];
}

std::vector<MemoryPattern> all_memory_patterns() {
  return {MemoryPattern::random,       MemoryPattern::address,       MemoryPattern::inversions,
          MemoryPattern::walking_ones, MemoryPattern::walking_zeros, MemoryPattern::retention};
}

std::vector<MarchElement> march_of(const std::vector<MemoryPattern>& patterns, std::uint64_t seed,
                                   std::uint64_t pass) {
  std::vector<MarchElement> march;
  for (const MemoryPattern pattern : patterns) {
    const auto rules = rules_of(pattern, derive_seed(seed, pass));
    for (std::size_t i = 0; i <= rules.size(); ++i) {
      MarchElement element{pattern, {}, {}, i / 2 % 2 == 1, false};  // twice up, twice down
      if (i > 0) element.check = rules[i - 1];
      if (i < rules.size()) element.write = rules[i];
      element.waits = pattern == MemoryPattern::retention && i > 0;
      march.push_back(element);
    }
  }
  return march;
}

namespace {

constexpr std::uint64_t kRow = 256;            // words around the wrong one that are tried with it
constexpr std::uint64_t kOtherAddresses = 16;  // spread evenly over the memory
constexpr std::uint64_t kFlushed = std::uint64_t{256} << 17;  // words: above twice any cache

}  // namespace

MemoryRetrial::MemoryRetrial(Device& device, const SweepKernels& kernels, Stream& stream,
                             const std::vector<MemoryPart>& parts)
    : device_(device),
      kernels_(kernels),
      stream_(stream),
      parts_(parts),
      errors_(device, sizeof(MemoryErrors)),
      ignored_(device, sizeof(MemoryErrors)) {}

Evidence MemoryRetrial::collect(const MemoryError& error, const WordRule& rule, int repeats,
                                bool elsewhere) {
  device_.zero(ignored_.data(), ignored_.bytes(), stream_);
  std::vector<std::uint64_t> places;
  for (std::uint64_t i = 0; i <= kOtherAddresses; ++i)
    places.push_back((error.index % words() + i * (words() / (kOtherAddresses + 1))) % words());
  const auto wrong = [&](int processor, int address) {
    return is_wrong(rule, processor, places[static_cast<std::size_t>(address)]);
  };
  const Evidence evidence = collect_evidence(
      wrong, error.processor, elsewhere ? kernels_.processors() : std::vector<int>{},
      elsewhere ? static_cast<int>(kOtherAddresses) : 0, repeats);
  for (const std::uint64_t index : places)
    if (const auto& holds = part_at(index).holds) sweep(row_at(index), {{}, holds}, ignored_);
  stream_.synchronize();
  return evidence;
}

void MemoryRetrial::sweep(const MemoryBlock& block, const Sweep& sweep, const Buffer& found) const {
  kernels_.sweep(block, sweep, static_cast<MemoryErrors*>(found.data()), stream_);
}

/// Writes the words around an address and reads them back from memory.
std::optional<bool> MemoryRetrial::is_wrong(const WordRule& rule, int processor,
                                            std::uint64_t index) const {
  const MemoryBlock row = row_at(index);
  device_.zero(errors_.data(), errors_.bytes(), stream_);
  sweep(row, {{}, rule, false, 0, processor}, errors_);
  flush(index + words() / 2);
  sweep(row, {rule, {}, false, 0, processor}, errors_);
  const auto result = download<MemoryErrors>(device_, stream_, errors_.data(), 1).front();
  if (result.swept_by_one != 2) return std::nullopt;
  return result.count > 0;
}

std::uint64_t MemoryRetrial::words() const {
  return parts_.back().block.first + parts_.back().block.words.count;
}

const MemoryPart& MemoryRetrial::part_at(std::uint64_t index) const {
  const auto after = std::ranges::upper_bound(
      parts_, index, {}, [](const MemoryPart& part) { return part.block.first; });
  return *(after - 1);
}

MemoryBlock MemoryRetrial::row_at(std::uint64_t index) const {
  const MemoryBlock& block = part_at(index).block;
  const std::uint64_t begin = (index - block.first) / kRow * kRow;
  return {block.words.slice(begin, std::min(kRow, block.words.count - begin)), block.first + begin};
}

/// Reads as much as pushes anything else out of the caches.
void MemoryRetrial::flush(std::uint64_t from) const {
  const std::uint64_t most = std::min(kFlushed, words() / 8);
  for (std::uint64_t read = 0; read < most;) {
    const std::uint64_t index = (from + read) % words() / 2 * 2;
    const MemoryPart& part = part_at(index);
    const std::uint64_t begin = index - part.block.first;
    const std::uint64_t count =
        std::min<std::uint64_t>(part.block.words.count - begin, most - read + 1) / 2 * 2;
    if (part.holds)
      sweep({part.block.words.slice(begin, count), index}, {part.holds, {}}, ignored_);
    read += count;
  }
}

std::string findings_text(std::span<const MemoryError> listed, std::uint64_t count) {
  const std::uint64_t first = listed.front().index;
  std::uint64_t any_bits = 0, lowest = first, period = 0;
  bool set = false, cleared = false, one_lane = true;  // words with 1 instead of 0, 0 instead of 1
  std::size_t transient = 0;
  for (const MemoryError& error : listed) {
    const std::uint64_t difference = error.expected ^ error.found;
    any_bits |= difference;
    set = set || (difference & error.found) != 0;
    cleared = cleared || (difference & error.expected) != 0;
    transient += error.found_again == error.expected;
    lowest = std::min(lowest, error.index);
    one_lane = one_lane && error.index % 32 == first % 32;
  }
  for (const MemoryError& error : listed) period = std::gcd(period, error.index - lowest);
  std::string text =
      fmt::format("{} {} of 8 bytes{}: {}, {}", count, count == 1 ? "word" : "words",
                  listed.size() < count ? fmt::format(", of the first {}", listed.size()) : "",
                  bits_text(any_bits),
                  set && cleared ? "both ways"
                  : set          ? "1 instead of 0"
                                 : "0 instead of 1");
  if (period > 1) text += fmt::format("; every {} words", period);
  if (one_lane && period != 0) text += fmt::format("; index {} modulo 32", lowest % 32);
  if (transient > 0) text += fmt::format("; {} right when read again", transient);
  return text;
}

WordKind kind_of(const Sweep& sweep) {
  ENSURE(sweep.check || sweep.write, "a sweep does nothing");
  ENSURE(!sweep.check || !sweep.write || sweep.check->kind == sweep.write->kind,
         "a sweep checks and writes words of one kind");
  return sweep.check ? sweep.check->kind : sweep.write->kind;
}

std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::make_sweep_kernels(device)
                                           : cpu::make_sweep_kernels(device);
}

}  // namespace shakedown::node
