#include "launch/node/soak/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "launch/node/soak/schedule.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {
namespace {

constexpr int kGpuSize = 8192;
constexpr int kCpuSize = 256;

}  // namespace

void declare_options(OptionSet& options, SoakOptions& values) {
  options.heading("Soak");
  options.add("--minutes", values.minutes, "duration, fractions allowed")
      .at_least(0.001)
      .at_most(1e6)
      .idle_with({"--replay"});
  std::vector<std::string> types;
  for (const ProductType type : all_product_types()) types.emplace_back(name_of(type));
  options.add("--types", values.types, "types of the products; all: those that the devices have")
      .one_of(types)
      .idle_with({"--replay"});
  options.add("--loads", values.loads, "kinds of work")
      .one_of(names_of_loads())
      .idle_with({"--replay"});
  options
      .add("--shape", values.shapes,
           "steady: each load alone; square: products on and off at 0.5 to 10 Hz; mixed: all loads "
           "at the same time")
      .one_of(names_of_shapes())
      .idle_with({"--replay"});
  options
      .add("--size", values.size,
           fmt::format(
               "m and n of the products, a multiple of {}; k is the same, in fp8 twice and in "
               "int8 four times as large",
               kTileEdge))
      .at_least(kTileEdge)
      .at_most(8192)  // integers must be exact in every type
      .default_text(fmt::format("{} on gpu, {} on cpu", kGpuSize, kCpuSize))
      .idle_with({"--replay"});
  options.add("--seed", values.seed, "seed of all data").at_least(0).idle_with({"--replay"});
  options.add("--output", values.output, "folder for the capsules of what was wrong")
      .metavar("DIR")
      .idle_with({"--replay"});
  options.add("--record", values.record, ".jsonl file to which the results are appended")
      .metavar("FILE");
  options.heading("Replay");
  options.add("--replay", values.replay, "capsule whose product is repeated instead of a soak")
      .existing_file("bin/soak writes one to --output where a product is wrong")
      .metavar("FILE");
  options.add("--repeats", values.repeats, "products of a replay")
      .at_least(1)
      .only_with({"--replay"});
  declare_options(options, values.backend);
  options.heading("Verdict");
  declare_options(options, values.judge);
  declare_fault_option(options, values.fault);
  options.check([&] {
    if (values.size % kTileEdge != 0)
      throw UsageError(fmt::format("--size {}: must be a multiple of {}", values.size, kTileEdge));
  });
}

std::int64_t size_of_products(const SoakOptions& options, BackendKind kind) {
  if (options.size > 0) return options.size;
  return kind == BackendKind::gpu ? kGpuSize : kCpuSize;
}

ProductSpec product_spec(ProductType type, std::int64_t size) {
  const auto ratio = size_of(result_type(type)) / size_of(operand_type(type));
  return {type, size, size, size * static_cast<std::int64_t>(ratio)};
}

TypeChoice choose_types(const std::vector<std::string>& requested,
                        const std::vector<std::vector<ProductType>>& by_rank) {
  const auto lists = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  const bool all = lists(requested, "all") || requested.size() == all_product_types().size();
  TypeChoice choice;
  std::vector<std::string> left_out;
  for (const ProductType type : all_product_types()) {
    if (!all && !lists(requested, name_of(type))) continue;
    const auto lacking =
        std::find_if(by_rank.begin(), by_rank.end(),
                     [&](const std::vector<ProductType>& here) { return !lists(here, type); });
    if (lacking == by_rank.end())
      choice.types.push_back(type);
    else if (all)
      left_out.push_back(fmt::format("{} (rank {})", name_of(type), lacking - by_rank.begin()));
    else
      throw UsageError(fmt::format("--types {}: the device of rank {} has no such products",
                                   name_of(type), lacking - by_rank.begin()));
  }
  if (!left_out.empty())
    choice.remark =
        fmt::format("types left out, as not every device has them: {}", fmt::join(left_out, ", "));
  return choice;
}

TypeChoice choose_types(const SoakOptions& options, const Backend& backend) {
  double mine = 0;  // a bit per type
  for (const ProductType type : product_types(*backend.device))
    mine += std::ldexp(1.0, static_cast<int>(type));
  std::vector<std::vector<ProductType>> by_rank;
  for (const double bits : backend.session->all_gather(mine)) {
    by_rank.emplace_back();
    for (const ProductType type : all_product_types())
      if ((static_cast<unsigned>(bits) >> static_cast<int>(type) & 1U) != 0)
        by_rank.back().push_back(type);
  }
  return choose_types(options.types, by_rank);
}

}  // namespace shakedown::node
