// The memory test of every backend: each pattern finds a flipped bit and names its address and bit,
// and all of the memory is covered over calls.
#include "launch/node/soak/memory_test.hpp"
#include "common/error.hpp"

#include <cstdlib>

#include "common/backend.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

struct Rig {
  explicit Rig(BackendKind kind) : device(test::open_device(kind)) {
    settings.host_bytes = kBytes;
    settings.share = static_cast<double>(kBytes) /
                     static_cast<double>(std::max<std::size_t>(1, device->memory().free_bytes));
    settings.block_bytes = kBytes / 5;
    settings.retention_s = 0;
    settings.retrials = 3;
    load.seed = 7;
  }

  MemoryTest with(const MemoryFault& fault) {
    return {*device, load, settings, inject(fault, *device, make_sweep_kernels(*device))};
  }

  std::unique_ptr<Device> device;
  LoadSettings load;
  MemoryTestSettings settings;
};

/// A device that has no more than `most` bytes in one piece, and `pieces` of them.
class LimitedDevice final : public Device {
 public:
  LimitedDevice(std::size_t most, int pieces, std::size_t total = std::size_t{1} << 40)
      : most_(most), pieces_(pieces), total_(total) {}
  BackendKind kind() const override { return BackendKind::cpu; }
  DeviceIdentity identity() const override { return {}; }
  MemoryInfo memory() const override { return {total_, total_}; }
  const Kernels& kernels() const override { return real_->kernels(); }
  std::unique_ptr<Stream> make_stream(StreamPriority) override { return real_->make_stream(); }
  std::unique_ptr<Event> make_event() override { return real_->make_event(); }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    real_->copy(to, from, bytes, stream);
  }
  void zero(void* to, std::size_t bytes, Stream& stream) override {
    real_->zero(to, bytes, stream);
  }

 protected:
  void* allocate(std::size_t bytes, Place) override {
    if (bytes > most_ || pieces_ == 0) throw OutOfMemory("limited");
    --pieces_;
    return std::malloc(bytes);
  }
  void release(void* memory, Place) noexcept override { std::free(memory); }

 private:
  std::unique_ptr<Device> real_ = test::open_device(BackendKind::cpu);
  std::size_t most_;
  int pieces_;
  std::size_t total_;
};

}  // namespace

TEST_CASE("every memory pattern finds a word that does not keep a bit", "[memory_test][sanitize]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const MemoryPattern pattern = GENERATE(from_range(all_memory_patterns()));
  CAPTURE(name_of(rig.device->kind()), name_of(pattern));
  rig.settings.patterns = {pattern};
  MemoryFault fault;
  fault.word = 100001;
  fault.bit = 63;
  fault.times = 1;
  MemoryTest memory = rig.with(fault);
  std::vector<Mismatch> found;
  LoadCount count;
  while (memory.passes() == 0) count += memory.run(0, found);
  CHECK(count.wrong == 1);
  REQUIRE(found.size() == 1);
  CHECK(found[0].index == 100001 * 8);
  CHECK((*found[0].expected ^ *found[0].found) == std::uint64_t{1} << 63);
  CHECK_THAT(found[0].cause,
             ContainsSubstring(name_of(pattern)) && ContainsSubstring("bit 63 wrong"));
  CHECK(found[0].outcome == Outcome::fail);
}

TEST_CASE("a sound memory is covered by all patterns without a finding", "[memory_test][kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  MemoryTest memory(*rig.device, rig.load, rig.settings, make_sweep_kernels(*rig.device));
  std::vector<Mismatch> found;
  LoadCount count;
  while (memory.passes() == 0) count += memory.run(0, found);
  CHECK(found.empty());
  CHECK(count.wrong == 0);
  CHECK(memory.bytes() >= kBytes);
  std::size_t checks = 0;
  for (const MarchElement& element : march_of(rig.settings.patterns, 7, 0))
    if (element.check) ++checks;
  CHECK(count.checked == checks * memory.bytes() / 8);
  CHECK(count.bytes == static_cast<double>(checks * memory.bytes()));
}

TEST_CASE("a word that is always wrong sticks to its address", "[memory_test]") {
  Rig rig(GENERATE(from_range(test::backends())));
  if (make_sweep_kernels(*rig.device)->processors().size() < 2) return;
  rig.settings.patterns = {MemoryPattern::random};
  MemoryFault fault;
  fault.word = 31;
  MemoryTest memory = rig.with(fault);
  std::vector<Mismatch> found;
  while (found.empty()) memory.run(0, found);
  CHECK_THAT(found[0].cause, ContainsSubstring("sticks to the address"));
  CHECK(found[0].reproduced == 3);
  CHECK(found[0].repeats == 3);
  // What the retrials wrote is undone: nothing else is found.
  LoadCount count;
  std::vector<Mismatch> more;
  const auto first_pass = memory.passes();
  while (memory.passes() == first_pass) count += memory.run(0, more);
  for (const Mismatch& mismatch : more) CHECK(mismatch.index == 31 * 8);
}

TEST_CASE("a processor that reads wrongly is named", "[memory_test]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const auto kernels = make_sweep_kernels(*rig.device);
  const std::vector<int> processors = kernels->processors();
  if (processors.size() < 2) return;
  const Buffer buffer(*rig.device, 1 << 16);
  const auto stream = rig.device->make_stream();
  const WordRule rule{WordKind::random, 3, 0};
  const std::vector<MemoryPart> parts{{{buffer.view(DataType::uint64), 0}, rule}};
  MemoryFault fault;
  fault.word = ~std::uint64_t{0};  // at no address
  fault.processor = processors.back();
  const auto faulty = inject(fault, *rig.device, make_sweep_kernels(*rig.device));
  MemoryRetrial retrial(*rig.device, *faulty);
  MemoryError error;
  error.index = 40;
  error.processor = processors.back();
  const Evidence evidence = retrial.collect(parts, error, rule, *stream, 10);
  CHECK(evidence.same == Attempts{10, 10});
  CHECK(evidence.other_processors == Attempts{10, 0});
  CHECK(evidence.other_addresses == Attempts{10, 10});
  CHECK(place_error(evidence, "SM", error.processor).culprit == Culprit::processor);
}

TEST_CASE("memory is obtained in pieces where it does not come in one", "[memory_test]") {
  if (!shakedown::cpu::built()) SKIP("no cpu backend");  // LimitedDevice has its memory
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  MemoryTestSettings settings;
  settings.host_bytes = 100 * kMiB;
  LimitedDevice enough(40 * kMiB, 8);
  const TestedMemory memory = allocate_tested(enough, settings);
  CHECK(memory.bytes >= settings.host_bytes);
  CHECK(memory.buffers.size() > 2);
  LimitedDevice too_little(40 * kMiB, 2);
  CHECK_THROWS_AS(allocate_tested(too_little, settings), InconclusiveError);
}

TEST_CASE("less than 95 % of a GPU's memory tested is inconclusive", "[memory_test]") {
  if (!shakedown::cpu::built()) SKIP("no cpu backend");  // LimitedDevice has its memory
  MemoryTestSettings settings;
  settings.host_bytes = kBytes;
  settings.least_share = 0.95;
  const auto found_of = [&](double share) {
    LimitedDevice device(kBytes * 2, 100, static_cast<std::size_t>(kBytes / share));
    MemoryTest memory(device, {}, settings, make_sweep_kernels(device));
    std::vector<Mismatch> found;
    memory.run(0, found);
    memory.run(0, found);
    return found;
  };
  CHECK(found_of(0.955).empty());
  settings.free_share = 0.5;  // others hold half of it
  CHECK(found_of(0.955).size() == 1);
  settings.free_share = 1;
  const auto found = found_of(0.94);
  REQUIRE(found.size() == 1);
  CHECK(found[0].outcome == Outcome::inconclusive);
  CHECK(found[0].class_ == Class::environment);
  CHECK_THAT(found[0].cause, ContainsSubstring("hold of 1.064 MiB are tested, 95 % are needed"));
}

TEST_CASE("DCGM#284: memory that cannot be obtained is inconclusive", "[memory_test][closed]") {
  if (!shakedown::cpu::built()) SKIP("no cpu backend");  // host memory is that backend's
  const auto device = test::open_device(BackendKind::cpu);
  MemoryTestSettings settings;
  settings.host_bytes = std::size_t{1} << 60;
  CHECK_THROWS_AS(allocate_tested(*device, settings), InconclusiveError);
}

TEST_CASE("what wrong words have in common is said", "[memory_test]") {
  std::vector<MemoryError> errors;
  for (std::uint64_t i = 0; i < 4; ++i)
    errors.push_back({5 + 4096 * i, 0, 1U << 17, 1U << 17, 0, 3});
  CHECK(findings_text(errors, 9) ==
        "9 words of 8 bytes, of the first 4: bit 17, 1 instead of 0; every 4096 words; index 5 "
        "modulo 32");
  errors[2] = {77, ~std::uint64_t{0}, 0, ~std::uint64_t{0}, 0, 3};
  CHECK(findings_text(errors, 4) ==
        "4 words of 8 bytes: 64 bits, both ways; every 8 words; 1 right when read again");
}

}  // namespace shakedown::node
