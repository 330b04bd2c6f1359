#include "launch/node/soak/memory_test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/error.hpp"
#include "launch/node/soak/injected_faults.hpp"
#include "launch/node/soak/memory_findings.hpp"

namespace shakedown::node {
namespace {

constexpr std::size_t kReported = 4;  // mismatches of a call, of which the first one is placed
constexpr std::size_t kLeastPiece = std::size_t{16} << 20;
constexpr double kLongestSleep = 0.1;  // of a call's time, for retention

std::size_t whole_groups(double bytes) {
  return static_cast<std::size_t>(bytes) / 4096 * 4096 + 4096;
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
      retrial_(device, *kernels_),
      memory_(allocate_tested(device, settings)),
      parts_(parts_of(memory_, settings.block_bytes)),
      march_(march_of(settings.patterns, load.seed, 0)) {
  device.zero(errors_.data(), errors_.bytes(), *stream_);
}

LoadCount MemoryTest::run(double seconds, std::vector<Mismatch>& found) {
  device_.use_on_this_thread();
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  LoadCount count;
  placed_.reset();
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
  for (const MemoryError& error : listed.first(std::min(listed.size(), kReported)))
    found.push_back(
        describe(error, findings,
                 error.index == listed.front().index ? std::optional(found.size()) : std::nullopt));
  device_.zero(errors_.data(), errors_.bytes(), *stream_);
  return errors.count;
}

Mismatch MemoryTest::describe(const MemoryError& error, const std::string& findings,
                              std::optional<std::size_t> placed_as) {
  const auto march = march_of(settings_.patterns, load_.seed, error.sweep / march_.size());
  const MarchElement& element = march[error.sweep % march.size()];
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = sweeps_;
  mismatch.where = fmt::format("offset {:#x} of {}", error.index * 8,
                               readable_bytes(static_cast<double>(memory_.bytes)));
  mismatch.index = error.index * 8;
  mismatch.expected = error.expected;
  mismatch.found = error.found;
  mismatch.sm = error.processor;
  mismatch.cause = fmt::format("{}: {} wrong, {} when read again; in all {}",
                               name_of(element.pattern), bits_text(error.expected ^ error.found),
                               error.found_again == error.expected ? "right" : "wrong", findings);
  mismatch.action = "reset the GPU, which remaps rows; RMA if it comes back";
  if (element.pattern == MemoryPattern::retention) {  // an immediate retrial would find it right
    mismatch.cause += fmt::format("; after {:g} s left alone", settings_.retention_s);
  } else if (placed_as) {
    const Evidence evidence =
        retrial_.collect(parts_, error, *element.check, *stream_, settings_.retrials);
    mismatch.reproduced = evidence.same.wrong;
    mismatch.repeats = evidence.same.tried;
    const std::string before = mismatch.cause + "; ";
    mismatch.place(place_error(evidence, unit(), error.processor), before);
    const Json task{{"index", error.index},
                    {"kind", static_cast<int>(element.check->kind)},
                    {"seed", element.check->seed},
                    {"flip", element.check->flip}};
    if (!placed_) placed_ = {*placed_as, json_text(task), before, evidence, error.processor};
  }
  return mismatch;
}

/// What others hold is not tested: a clean pass would not be one of this memory.
Mismatch MemoryTest::too_little() const {
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.where = "that is not tested";
  mismatch.outcome = Outcome::inconclusive;
  mismatch.class_ = Class::environment;
  mismatch.cause = fmt::format(
      "only {:.1f} % of what this program does not hold of {} are tested, {:.0f} % "
      "are needed; {:.1f} % were free",
      100 * available_share(), readable_bytes(static_cast<double>(memory_.total_bytes)),
      100 * settings_.least_share, 100 * settings_.free_share);
  mismatch.action = "end the processes that hold the rest (nvidia-smi), and run again";
  return mismatch;
}

Attempts MemoryTest::attempt(const std::string& text) {
  const Json json = Json::parse(text);
  const WordRule rule{static_cast<WordKind>(json["kind"].get<int>()),
                      json["seed"].get<std::uint64_t>(), json["flip"].get<std::uint64_t>()};
  return retrial_.attempt(parts_, json["index"].get<std::uint64_t>(), rule, *stream_,
                          settings_.retrials);
}

LoadCount MemoryTest::confer(const MpiSession& jurors, std::vector<Mismatch>& found) {
  place_by_others(
      jurors, placed_, unit(), [this](const auto& task) { return attempt(task); }, found);
  return {};
}

int MemoryTest::patterns_done() const {
  int done = 0;
  for (std::size_t i = 1; i <= element_; ++i)
    if (march_[i].pattern != march_[i - 1].pattern) ++done;
  return done;
}

double MemoryTest::of_pass() const {
  const double parts = static_cast<double>(part_) / static_cast<double>(parts_.size());
  return (static_cast<double>(element_) + parts) / static_cast<double>(march_.size());
}

std::string MemoryTest::summary() const {
  const auto bytes = static_cast<double>(memory_.bytes);
  const auto share_of = [&](std::size_t of) {
    return fmt::format("{:.1f} % of {}", 100 * bytes / static_cast<double>(of),
                       readable_bytes(static_cast<double>(of)));
  };
  return fmt::format("{}{}, {} complete pass{} and {} of {} patterns; retention {:.3g} s",
                     readable_bytes(bytes),
                     device_.kind() == BackendKind::gpu
                         ? fmt::format(": {} free, {} in all", share_of(memory_.free_bytes),
                                       share_of(memory_.total_bytes))
                         : "",
                     pass_, pass_ == 1 ? "" : "es", patterns_done(), settings_.patterns.size(),
                     settings_.retention_s);
}

std::unique_ptr<MemoryTest> make_memory_test(Device& device, const LoadSettings& load,
                                             const MemoryTestSettings& settings) {
  std::unique_ptr<SweepKernels> kernels = make_sweep_kernels(device);
  if (load.fault) kernels = inject(MemoryFault{}, device, std::move(kernels));
  return std::make_unique<MemoryTest>(device, load, settings, std::move(kernels));
}

}  // namespace shakedown::node
