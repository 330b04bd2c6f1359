// Every operation, type, reduction and placement, on every transport: right, and seen to be wrong
// where a fault is injected.
#include "collectives/perf/bench.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/injection.hpp"

namespace shakedown::collectives {
namespace {

/// A backend of this program's ranks and what runs on it.
struct Rig {
  explicit Rig(BackendKind kind) : backend(test::open_backend_of(kind)) {}

  std::vector<Communicator*> transports() {
    if (backend.kind == BackendKind::cpu) return {backend.world.get()};
    return {backend.world.get(), backend.host.get()};
  }
  Trial trial(const Operation& operation, DataType type, Reduction reduction, bool in_place,
              std::size_t elements, std::size_t align = 1) {
    const auto ranks = static_cast<std::size_t>(backend.world->size());
    return {&operation, type, reduction, 0, operation.counts(elements, ranks, align, size_of(type)),
            in_place,   0};
  }

  Backend backend;
};

/// One bit flipped on this rank in one operation; none where `operation` is negative.
Injection fault(int rank, long operation, std::size_t index) {
  Injection injection;
  if (operation < 0) return injection;
  injection.wrong_rank = rank;
  injection.operation = operation;
  injection.index = index;
  return injection;
}

/// Those that this number of ranks can do.
std::vector<Operation> possible_operations(int ranks) {
  std::vector<Operation> possible;
  for (const Operation& operation : operations())
    if (!operation.power_of_two || std::has_single_bit(static_cast<unsigned>(ranks)))
      possible.push_back(operation);
  return possible;
}

BenchSettings short_run() {
  BenchSettings settings;
  settings.iterations = 3;
  settings.warmup = 1;
  settings.repeats = 2;
  return settings;
}

}  // namespace

TEST_CASE("every operation, type and reduction is right, in place and out of place", "[bench]") {
  Rig rig(GENERATE(from_range(test::backends())));
  for (Communicator* transport : rig.transports()) {
    CollectiveBench bench(*transport, rig.backend, test::session(), short_run(), 1 << 16);
    for (const Operation& operation : possible_operations(rig.backend.world->size())) {
      for (DataType type : all_data_types()) {
        if (!transport->supports(type)) continue;
        for (Reduction reduction : all_reductions()) {
          if (!operation.reduces && reduction != Reduction::sum) continue;
          for (bool in_place : {false, true}) {
            if (in_place && !operation.in_place) continue;
            const Trial trial = rig.trial(operation, type, reduction, in_place, 1003);
            const Measurement measured = bench.measure(trial);
            CAPTURE(operation.name, name_of(type), name_of(reduction), in_place,
                    transport->transport());
            CHECK(measured.wrong == 0);
            CHECK(measured.iterations_checked == 6);
            CHECK(measured.samples_us.size() == 2);
            CHECK(measured.samples_us[0] > 0);
          }
        }
      }
    }
  }
}

TEST_CASE("sizes that cannot be divided, and other roots", "[bench]") {
  Rig rig(GENERATE(from_range(test::backends())));
  CollectiveBench bench(*rig.backend.world, rig.backend, test::session(), short_run(), 1 << 16);
  for (const Operation& operation : possible_operations(rig.backend.world->size())) {
    for (std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{17}}) {
      Trial trial = rig.trial(operation, DataType::int32, Reduction::max, false, elements, 4);
      trial.root = rig.backend.world->size() - 1;
      CAPTURE(operation.name, elements);
      CHECK(bench.measure(trial).wrong == 0);
    }
  }
}

TEST_CASE("one turned bit on one rank in one iteration is always found", "[bench]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const int last = rig.backend.world->size() - 1;
  for (const Operation& operation : possible_operations(rig.backend.world->size())) {
    if (rig.backend.world->size() == 1 && operation.rooted) continue;
    // at the root of rooted operations, which all have results there
    const Injection injection = fault(operation.rooted ? 0 : last, 4, 5);
    const auto bench = injected_bench(injection, *rig.backend.world, rig.backend, test::session(),
                                      short_run(), 1 << 16);
    for (bool in_place : {false, true}) {
      if (in_place && !operation.in_place) continue;
      const Trial trial = rig.trial(operation, DataType::bfloat16, Reduction::sum, in_place, 1003);
      const Measurement measured = bench->measure(trial);
      CAPTURE(operation.name, in_place);
      CHECK(measured.wrong == 1);
      REQUIRE(measured.first_wrong);
      CHECK(measured.first_wrong->rank == injection.wrong_rank);
      CHECK(measured.first_wrong->iteration == 4);
      CHECK(measured.first_wrong->index == 5);
      CHECK((measured.first_wrong->expected ^ measured.first_wrong->found) == 16);
      CHECK(measured.diagnosis.foremost().kind == operands::WrongData::bit_flip);
    }
  }
}

TEST_CASE("each class of wrong data is named in every operation", "[bench]") {
  using operands::WrongData;
  Rig rig(GENERATE(from_range(test::backends())));
  const int ranks = rig.backend.world->size();
  if (ranks == 1) return;
  for (const Operation& operation : possible_operations(rig.backend.world->size())) {
    // at the root of rooted operations, which all have results there
    Injection injection = fault(operation.rooted ? 0 : ranks - 1, 4, 0);
    injection.bytes = 1024;
    for (const WrongData kind : operands::all_wrong_data()) {
      injection.damage = Damage{.kind = kind, .rank = (injection.wrong_rank + 1) % ranks};
      const auto bench = injected_bench(injection, *rig.backend.world, rig.backend, test::session(),
                                        short_run(), 1 << 16);
      for (DataType type :
           {DataType::float32, DataType::bfloat16, DataType::int8, DataType::uint64}) {
        const Trial trial =
            rig.trial(operation, type, Reduction::sum, false, 16384 / size_of(type), 16);
        if (!applies(*injection.damage,
                     operands::make_operands(type, operation.reduces, Reduction::sum, ranks)))
          continue;
        const Measurement measured = bench->measure(trial);
        CAPTURE(operation.name, name_of(type), operands::name_of(kind), measured.wrong);
        CHECK(measured.wrong > 0);
        CHECK(measured.diagnosis.foremost().kind == kind);
        CHECK(measured.diagnosis.regions(kind) == measured.diagnosis.regions());
        if (kind == WrongData::missing_addend)
          CHECK(measured.diagnosis.foremost().from_rank == injection.damage->rank);
        if (kind == WrongData::torn) CHECK(measured.diagnosis.foremost().torn_bytes == 64);
      }
    }
  }
}

TEST_CASE("a ring shorter than a sample, groups, waiting after each, and one by one", "[bench]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const std::size_t elements = 5003;
  BenchSettings settings = short_run();
  settings.iterations = 7;
  SECTION("a ring of two slots and the spare") { settings.ring_bytes = 3 * 2 * 20480; }
  SECTION("a ring of one slot, which is the spare too") { settings.ring_bytes = 1; }
  SECTION("groups") { settings.aggregate = 3; }
  SECTION("groups in a short ring") {
    settings.aggregate = 3;
    settings.ring_bytes = 1;
  }
  SECTION("barriers") { settings.blocking = Blocking::untimed_barrier; }
  SECTION("one by one") { settings.one_by_one = true; }
  for (bool in_place : {false, true}) {
    for (long wrong : {-1, 10}) {
      const auto bench = injected_bench(fault(0, wrong, 3), *rig.backend.world, rig.backend,
                                        test::session(), settings, elements * 4);
      const Measurement measured = bench->measure(rig.trial(
          find_operation("all_reduce"), DataType::float32, Reduction::sum, in_place, elements));
      CAPTURE(in_place, wrong);
      CHECK(measured.wrong == (wrong < 0 ? 0 : 1));
      CHECK(measured.iterations_checked == 14);
      if (wrong >= 0) CHECK(measured.first_wrong->iteration == wrong);
      if (!settings.one_by_one) continue;
      REQUIRE(measured.iteration_us.size() == static_cast<std::size_t>(rig.backend.world->size()));
      for (const auto& rank : measured.iteration_us) CHECK(rank.size() == 14);
    }
  }
}

TEST_CASE("graphs and registered buffers give the same, and faults are seen there too", "[bench]") {
  Rig rig(GENERATE(from_range(test::backends())));
  if (rig.backend.kind == BackendKind::cpu) return;  // has neither
  BenchSettings settings = short_run();
  SECTION("graph") { settings.graph = true; }
  SECTION("registered") { settings.registration = Registration::local; }
  SECTION("symmetric windows") {
    if (rig.backend.world->size() == 1) return;
    settings.registration = Registration::symmetric;
  }
  for (bool wrong : {false, true}) {
    const auto bench = injected_bench(fault(0, wrong ? 4 : -1, 3), *rig.backend.world, rig.backend,
                                      test::session(), settings, 1 << 16);
    const Measurement measured = bench->measure(
        rig.trial(find_operation("all_reduce"), DataType::float32, Reduction::sum, false, 1003));
    CHECK(measured.wrong == (wrong ? 1 : 0));
    CHECK(measured.iterations_checked == 6);
  }
}

}  // namespace shakedown::collectives
