// The verifier of every backend: what it fills it finds right, and one turned bit it finds wrong.
#include "collectives/verifier.hpp"

#include "common/program.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::collectives {

TEST_CASE("a verifier finds its own pattern, and one turned bit in it", "[verifier][kernels]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const DataType type =
      GENERATE(DataType::uint8, DataType::float16, DataType::float32, DataType::uint64);
  CAPTURE(name_of(kind), name_of(type));
  constexpr std::size_t kCount = 1000;
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const auto verifier = make_verifier(kind);
  const Buffer memory(*device, kCount * size_of(type));
  const Pattern pattern{type, false, Reduction::sum, 1, 5};
  const auto mismatches = [&] {
    const Buffer result = test::to_device(*device, *stream, std::vector<Mismatches>(1));
    verifier->check(memory.view(type), pattern, 2, 7, 30, static_cast<Mismatches*>(result.data()),
                    *stream);
    return download<Mismatches>(*device, *stream, result.data(), 1).front();
  };
  verifier->fill(memory.view(type), pattern, 2, 7, *stream);
  CHECK(mismatches().wrong == 0);
  flip_bit(*device, memory.view(type), 123, 3);
  CHECK(mismatches().wrong == 1);
  CHECK(mismatches().first == 30 + 123);
}

}  // namespace shakedown::collectives
