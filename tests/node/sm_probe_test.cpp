// Probes of every backend: all processors compute alike, as the host does, and a wrong one is
// named.
#include "launch/node/soak/sm_probe.hpp"

#include <algorithm>

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {
namespace {

ProbeAnswer answer_of(int processor, std::uint64_t hash) {
  return {processor, 1, std::vector<std::uint64_t>(2 * kProbeLanes, hash), 0};
}

}  // namespace

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
  const auto probes = make_probe_load(*device, load, settings);
  const auto processors = make_probe(*device)->processors();
  std::vector<Mismatch> found;
  const LoadCount count = probes->run(0, found);
  CHECK(count.checked == processors.size());
  CHECK(count.wrong == (faulty ? 1 : 0));
  CHECK(probes->times().reached == static_cast<double>(processors.size()));
  CHECK(probes->times().slowest_ratio >= 1);
  REQUIRE(found.size() == (faulty ? 1 : 0));
  if (!faulty) return;
  CHECK(found[0].sm == processors.back());
  CHECK(found[0].reproduced == 2);
  if (processors.size() > 1) CHECK_THAT(found[0].cause, ContainsSubstring("sticks to"));
}

}  // namespace shakedown::node
