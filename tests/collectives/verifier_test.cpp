// Filling and checking, where the memory is: the bits of the host, on every backend.
#include "collectives/verifier.hpp"

#include <vector>

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::collectives {
namespace {

/// As bytes, which any type's elements are.
std::vector<unsigned char> bytes_of(const std::vector<std::uint64_t>& bits, DataType type) {
  std::vector<unsigned char> bytes;
  for (const std::uint64_t x : bits)
    for (std::size_t byte = 0; byte < size_of(type); ++byte)
      bytes.push_back(static_cast<unsigned char>(x >> (8 * byte)));
  return bytes;
}

/// Every layout: dense and sparse, signed and unsigned, paired averages, exponents.
std::vector<Operands> all_operands() {
  std::vector<Operands> all;
  for (DataType type : all_data_types())
    for (int ranks : {1, 3, 8, 64, 1024}) {
      all.push_back(operands::make_operands(type, false, Reduction::sum, ranks, 5, 9));
      for (Reduction op : all_reductions())
        all.push_back(operands::make_operands(type, true, op, ranks, 5, 9));
    }
  return all;
}

void compare_with_host(BackendKind kind) {
  constexpr std::size_t kCount = 515;  // the last unit is not whole
  constexpr std::uint64_t kFirst = 4096 + 5;
  test::DeviceRig rig(kind);
  const auto verifier = make_verifier(kind);
  const Buffer data(*rig.device, kCount * sizeof(std::uint64_t));
  const Buffer result(*rig.device, sizeof(Mismatches));
  const auto check = [&](const Operands& o, int source, std::uint64_t index) {
    const Mismatches none;
    upload<Mismatches>(*rig.device, *rig.stream, result.data(), {&none, 1});
    verifier->check(View(data.data(), kCount, o.type, data.place()), o, source, kFirst, index,
                    static_cast<Mismatches*>(result.data()), *rig.stream);
    return download<Mismatches>(*rig.device, *rig.stream, result.data(), 1).front();
  };
  for (const Operands& o : all_operands()) {
    CAPTURE(name_of(o.type), o.combined, name_of(o.reduction), o.ranks);
    const int rank = o.ranks - 1;
    const std::size_t size = size_of(o.type);
    std::vector<std::uint64_t> expected;
    for (std::size_t i = 0; i < kCount; ++i) expected.push_back(input_bits(o, rank, kFirst + i));
    verifier->fill(View(data.data(), kCount, o.type, data.place()), o, rank, kFirst, *rig.stream);
    CHECK(download<unsigned char>(*rig.device, *rig.stream, data.data(), kCount * size) ==
          bytes_of(expected, o.type));
    CHECK(check(o, rank, 0).wrong == 0);
    if (!o.combined) continue;

    for (std::size_t i = 0; i < kCount; ++i) expected[i] = combined_bits(o, kFirst + i);
    upload<unsigned char>(*rig.device, *rig.stream, data.data(), bytes_of(expected, o.type));
    CHECK(check(o, kAllRanks, 0).wrong == 0);
    for (const std::size_t wrong : {std::size_t{16}, std::size_t{17}, std::size_t{400}, kCount - 1})
      expected[wrong] ^= std::uint64_t{1} << (8 * size - 2);  // the exponent's highest
    upload<unsigned char>(*rig.device, *rig.stream, data.data(), bytes_of(expected, o.type));
    const Mismatches found = check(o, kAllRanks, 7);
    CHECK(found.wrong == 4);
    CHECK(found.first == 7 + 16);
    CHECK(found.last == 7 + kCount - 1);
  }
}

}  // namespace

CPU_TEST_CASE("operands on the CPU are the host's, and mismatches are located", "[verifier]") {
  compare_with_host(BackendKind::cpu);
}
GPU_TEST_CASE("operands on a GPU are the host's, and mismatches are located", "[verifier]") {
  compare_with_host(BackendKind::gpu);
}

}  // namespace shakedown::collectives
