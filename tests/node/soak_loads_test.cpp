// The loads of a soak on every backend: each finds a flipped bit, and says where it sticks.
#include <algorithm>
#include <array>
#include <vector>

#include "common/error.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/transfer_load.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/fake_device.hpp"

namespace shakedown::node {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

struct MemoryRig {
  explicit MemoryRig(BackendKind kind) : device(test::open_device(kind)) {
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
class LimitedDevice final : public test::FakeDevice {
 public:
  LimitedDevice(std::size_t most, int pieces, std::size_t total = std::size_t{1} << 40)
      : most_(most), pieces_(pieces), total_(total) {}
  MemoryInfo memory() const override { return {total_, total_}; }
  const Kernels& kernels() const override { return real_->kernels(); }
  std::unique_ptr<Stream> make_stream(StreamPriority) override { return real_->make_stream(); }
  std::unique_ptr<Event> make_event() override { return real_->make_event(); }

 protected:
  void* allocate(std::size_t bytes, Place place) override {
    if (bytes > most_ || pieces_ == 0) throw OutOfMemory("limited");
    --pieces_;
    return FakeDevice::allocate(bytes, place);
  }

 private:
  std::unique_ptr<Device> real_ = test::open_device(BackendKind::cpu);
  std::size_t most_;
  int pieces_;
  std::size_t total_;
};

constexpr CopySettings kSmall{std::size_t{1} << 16, 3};

ProbeAnswer answer_of(int processor, std::uint64_t hash) {
  return {processor, 1, std::vector<std::uint64_t>(2 * kProbeLanes, hash), 0};
}

}  // namespace

TEST_CASE("every memory pattern finds a word that does not keep a bit", "[memory_test][sanitize]") {
  MemoryRig rig(GENERATE(from_range(test::backends())));
  const MemoryPattern pattern = GENERATE(from_range(all_memory_patterns()));
  CAPTURE(name_of(rig.device->kind()), name_of(pattern));
  rig.settings.patterns = {pattern};
  MemoryTest memory = rig.with({.word = 100001, .bit = 63, .times = 1});
  std::vector<Mismatch> found;
  LoadCount count;
  while (memory.coverage().passes == 0) count += memory.run(0, found);
  CHECK(count.wrong == 1);
  REQUIRE(found.size() == 1);
  CHECK(found[0].index == 100001 * 8);
  CHECK((*found[0].expected ^ *found[0].found) == std::uint64_t{1} << 63);
  CHECK_THAT(found[0].cause,
             ContainsSubstring(name_of(pattern)) && ContainsSubstring("bit 63 wrong"));
  CHECK(found[0].outcome == Outcome::fail);
}

TEST_CASE("a sound memory is covered by all patterns without a finding", "[memory_test][kernels]") {
  MemoryRig rig(GENERATE(from_range(test::backends())));
  MemoryTest memory(*rig.device, rig.load, rig.settings, make_sweep_kernels(*rig.device));
  std::vector<Mismatch> found;
  LoadCount count;
  while (memory.coverage().passes == 0) count += memory.run(0, found);
  CHECK(found.empty());
  CHECK(count.wrong == 0);
  const double bytes = memory.coverage().bytes;
  CHECK(bytes >= kBytes);
  double checks = 0;
  for (const MarchElement& element : march_of(rig.settings.patterns, 7, 0))
    if (element.check) ++checks;
  CHECK(static_cast<double>(count.checked) == checks * bytes / 8);
  CHECK(count.bytes == checks * bytes);
}

TEST_CASE("a word that is always wrong sticks to its address", "[memory_test]") {
  MemoryRig rig(GENERATE(from_range(test::backends())));
  if (make_sweep_kernels(*rig.device)->processors().size() < 2) return;
  rig.settings.patterns = {MemoryPattern::random};
  MemoryTest memory = rig.with({.word = 31});
  std::vector<Mismatch> found;
  while (found.empty()) memory.run(0, found);
  CHECK_THAT(found[0].cause, ContainsSubstring("sticks to the address"));
  CHECK(found[0].reproduced == 3);
  CHECK(found[0].repeats == 3);
  // What the retrials wrote is undone: nothing else is found.
  LoadCount count;
  std::vector<Mismatch> more;
  const auto first_pass = memory.coverage().passes;
  while (memory.coverage().passes == first_pass) count += memory.run(0, more);
  for (const Mismatch& mismatch : more) CHECK(mismatch.index == 31 * 8);
}

TEST_CASE("a processor that reads wrongly is named", "[memory_test]") {
  MemoryRig rig(GENERATE(from_range(test::backends())));
  const auto kernels = make_sweep_kernels(*rig.device);
  const std::vector<int> processors = kernels->processors();
  if (processors.size() < 2) return;
  const Buffer buffer(*rig.device, 1 << 16);
  const auto stream = rig.device->make_stream();
  const WordRule rule{WordKind::random, 3, 0};
  const std::vector<MemoryPart> parts{{{buffer.view(DataType::uint64), 0}, rule}};
  const MemoryFault fault{.word = ~std::uint64_t{0}, .processor = processors.back()};  // no address
  const auto faulty = inject(fault, *rig.device, make_sweep_kernels(*rig.device));
  MemoryRetrial retrial(*rig.device, *faulty, *stream, parts);
  MemoryError error;
  error.index = 40;
  error.processor = processors.back();
  const Evidence evidence = retrial.collect(error, rule, 10);
  CHECK(evidence.same == Attempts{10, 10});
  CHECK(evidence.other_processors == Attempts{10, 0});
  CHECK(evidence.other_addresses == Attempts{10, 10});
  CHECK_THAT(place_error(evidence, "SM", error.processor).cause, ContainsSubstring("sticks to SM"));
}

CPU_TEST_CASE("memory is obtained in pieces where it does not come in one", "[memory_test]") {
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

CPU_TEST_CASE("less than 95 % of a GPU's memory tested is inconclusive", "[memory_test]") {
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

// Probes of every backend: all processors compute alike, as the host does, and a wrong one is
// named.

TEST_CASE("copies arrive as they were sent", "[copies][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  CopyLoad copies(*device, {}, kSmall);
  std::vector<Mismatch> found;
  LoadCount count;
  for (int i = 0; i < 3; ++i) count += copies.run(0, found);
  CHECK(found.empty());
  CHECK(count.checked == 9);
  CHECK(count.wrong == 0);
  CHECK(count.bytes == 9. * kSmall.bytes);
  CHECK(copies.bytes() == std::array{3. * kSmall.bytes, 3. * kSmall.bytes, 3. * kSmall.bytes});
}

TEST_CASE("a bit flipped by a copy is found, and on which way", "[copies]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const CopyWay way =
      GENERATE(CopyWay::host_to_device, CopyWay::device_to_device, CopyWay::device_to_host);
  const int times = GENERATE(-1, 1);
  CAPTURE(name_of(device->kind()), name_of(way), times);
  CopySettings settings = kSmall;
  settings.fault = {way, 77, 5, times};
  CopyLoad copies(*device, {}, settings);
  std::vector<Mismatch> found;
  const LoadCount count = copies.run(0, found);
  CHECK(count.wrong == 1);
  REQUIRE(found.size() == 1);
  CHECK(found[0].index == 77 * 8);
  CHECK((*found[0].expected ^ *found[0].found) == 1U << 5);
  CHECK(found[0].reproduced == (times < 0 ? 3 : 0));
  CHECK_THAT(found[0].where, ContainsSubstring(name_of(way)));
}

TEST_CASE("what an earlier copy left does not pass for a copy", "[copies]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  CopySettings settings = kSmall;
  settings.fault = {CopyWay::device_to_device, 0, CopyFault::kNothing, -1};
  LoadSettings load;
  load.seed = 99;  // of no other test
  CopyLoad copies(*device, load, settings);
  std::vector<Mismatch> found;
  CHECK(copies.run(0, found).wrong == 1);
  CHECK(copies.run(0, found).wrong == 1);  // of the words that the first one should have brought
}

TEST_CASE("every processor computes what the host computes", "[probe][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  const auto probe = make_probe(*device);
  const std::vector<int> processors = probe->processors();
  for (const ProbeKind kind : probe->kinds()) {
    CAPTURE(name_of(device->kind()), name_of(kind));
    const ProbeTask task{kind, 11, 20};
    const auto answers = probe->run(task, processors, *stream);
    REQUIRE(answers.size() == processors.size());
    const ProbeRuling ruling = judge(task, answers);
    CHECK(ruling.undecided.empty());
    CHECK(ruling.wrong.empty());
    for (std::size_t lane = 0; on_host(kind) && lane < ruling.expected.size(); ++lane)
      CHECK(ruling.expected[lane] == host_hash(task, static_cast<int>(lane)));
  }
}

TEST_CASE("a probe runs on the chosen processor alone", "[probe][sanitize]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  const auto probe = make_probe(*device);
  const int last = probe->processors().back();
  const auto answers = probe->run({ProbeKind::fma_fp32, 5, 10}, std::span(&last, 1), *stream);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].processor == last);
  CHECK(answers[0].hashes[3] == host_hash({ProbeKind::fma_fp32, 5, 10}, 3));
}

TEST_CASE("the vote names the processor that differs", "[probe]") {
  const ProbeTask task;
  std::vector<ProbeAnswer> answers{answer_of(4, 1), answer_of(5, 1), answer_of(9, 1)};
  CHECK(judge(task, answers).wrong.empty());
  answers[1].hashes[kProbeLanes + 7] = 2;
  answers[1].wrong = 3;
  const ProbeRuling ruling = judge(task, answers);
  REQUIRE(ruling.wrong.size() == 1);
  CHECK(ruling.wrong[0].processor == 5);
  CHECK(ruling.wrong[0].wrong_hashes == 1);
  CHECK(ruling.wrong[0].wrong_exact == 3);
  CHECK(ruling.wrong[0].warp == 1);
  CHECK(ruling.wrong[0].lane == 7);
  CHECK(ruling.wrong[0].found == 2);
}

TEST_CASE("a vote without a majority names nobody", "[probe]") {
  const ProbeTask task;
  const std::vector<ProbeAnswer> differ{answer_of(0, 1), answer_of(1, 2), answer_of(2, 3)};
  CHECK_THAT(judge(task, differ).undecided, ContainsSubstring("no majority"));
  CHECK_FALSE(judge(task, {}).undecided.empty());
  // Two: the host decides, but for what it cannot compute.
  const std::vector<ProbeAnswer> two{answer_of(0, 1), answer_of(1, 1)};
  CHECK(judge(task, two).wrong.size() == 2);
  CHECK_FALSE(judge({ProbeKind::mma_fp16, 0, 1}, two).undecided.empty());
}

TEST_CASE("a load of probes names and places a wrong processor", "[probe]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const bool faulty = GENERATE(false, true);
  LoadSettings load;
  if (faulty) load.fault = FaultKind::product;
  ProbeSettings settings;
  settings.probe_ms = 0.1;
  settings.retrials = 2;
  ProbeLoad probes(*device, load, settings);
  const auto processors = make_probe(*device)->processors();
  std::vector<Mismatch> found;
  const LoadCount count = probes.run(0, found);
  CHECK(count.checked == processors.size());
  CHECK(count.wrong == (faulty ? 1 : 0));
  CHECK(probes.times().reached == static_cast<double>(processors.size()));
  CHECK(probes.times().slowest_ratio >= 1);
  REQUIRE(found.size() == (faulty ? 1 : 0));
  if (!faulty) return;
  CHECK(found[0].sm == processors.back());
  CHECK(found[0].reproduced == 2);
  if (processors.size() > 1) CHECK_THAT(found[0].cause, ContainsSubstring("sticks to"));
}

TEST_CASE("evidence counts what got to its processor", "[placing]") {
  CHECK(helpers_of(6, 8) == std::vector{7, 0});
  CHECK(helpers_of(1, 2) == std::vector{0});
  CHECK(helpers_of(0, 1).empty());
  std::vector<int> tried;
  const Retrial retrial = [&](int processor, int address) {
    tried.push_back(address);
    return processor == 9 ? std::nullopt : std::optional(processor == 3);
  };
  const std::vector<int> processors{3, 4, 9};
  const Evidence evidence = collect_evidence(retrial, 3, processors, 2, 10);
  CHECK(evidence.same == Attempts{10, 10});
  CHECK(evidence.other_processors == Attempts{5, 0});  // 9 is never reached
  CHECK(evidence.other_addresses == Attempts{10, 10});
  CHECK(std::count(tried.begin(), tried.end(), 2) == 5);
}

}  // namespace shakedown::node
