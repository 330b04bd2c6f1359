#include "launch/node/soak/soak_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/fault.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
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
           fmt::format("m, n and k of the products, a multiple of {}", kTileEdge))
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
      .existing_file("written by bin/soak where a product was wrong")
      .metavar("FILE");
  options.add("--repeats", values.repeats, "products of a replay")
      .at_least(1)
      .only_with({"--replay"});
  declare_options(options, values.backend);
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

std::vector<ProductType> choose_types(const SoakOptions& options, const Backend& backend) {
  const bool all = std::count(options.types.begin(), options.types.end(), "all") > 0 ||
                   options.types.size() == all_product_types().size();
  const std::vector<ProductType> here = product_types(*backend.device);
  std::vector<ProductType> types;
  for (const ProductType type : all_product_types()) {
    const bool named = std::count(options.types.begin(), options.types.end(), name_of(type)) > 0;
    if (!named && !all) continue;
    const bool mine = std::count(here.begin(), here.end(), type) > 0;
    const auto having = backend.session->all_gather(mine ? 1.0 : 0.0);
    const auto lacking = std::find(having.begin(), having.end(), 0.0);
    if (lacking == having.end()) {
      types.push_back(type);
    } else if (!all) {
      throw UsageError(fmt::format("--types {}: the device of rank {} has no such products",
                                   name_of(type), lacking - having.begin()));
    }
  }
  return types;
}

}  // namespace shakedown::node
