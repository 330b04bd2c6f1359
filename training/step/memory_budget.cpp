#include "training/step/memory_budget.hpp"

#include <fmt/format.h>

#include <limits>

#include "common/mpi_session.hpp"
#include "training/step/memory_search.hpp"

namespace shakedown::training {
namespace {

std::size_t free_share(const Engine& engine, int ranks_on_device) {
  return engine.device().memory().free_bytes / static_cast<std::size_t>(ranks_on_device);
}

/// On this rank. What a batch needs is planned, not guessed: workspaces do not grow with it.
int largest_planned(Engine& engine, std::size_t limit, int most) {
  return largest_fitting(limit, most, [&](int batch_size) {
    NetworkSettings settings = engine.settings().network;
    settings.batch_size = batch_size;
    try {
      return bytes_needed(Network(settings, engine.device(), engine.stream(), nullptr),
                          engine.settings().input_bytes(settings));
    } catch (const UsageError&) {  // no batch for a norm, or for a library
      return std::numeric_limits<std::size_t>::max();
    }
  });
}

bool on_all_ranks(Engine& engine, bool mine) {
  float all = mine ? 1 : 0;
  const View flag(&all, 1, DataType::float32, Place::host);
  engine.host().all_reduce(flag, flag, Reduction::min, engine.stream());
  return all > 0;
}

std::string ways_out(const Engine& engine, int largest) {
  const EngineSettings& settings = engine.settings();
  std::string help;
  if (engine.device().kind() == BackendKind::gpu &&
      size_of(compute_type(settings.network.precision)) > 2)
    help += "; --amp (fp16) needs about half";
  if (largest > 0)
    help += fmt::format("; --accumulate {} with a smaller batch keeps the images per update",
                        (settings.network.batch_size + largest - 1) / largest);
  if (engine.world().size() > 1 && settings.strategy.strategy != "fsdp")
    help += "; --strategy fsdp shares the weights' memory";
  return help;
}

}  // namespace

int ranks_on_device(const Backend& backend, const MpiSession& ranks) {
  return backend.kind == BackendKind::cpu ? ranks.local_size() : 1;
}

std::size_t bytes_needed(const Network& network, std::size_t input_bytes) {
  const bool gpu = network.device().kind() == BackendKind::gpu;
  const std::size_t libraries = std::size_t{gpu ? 512U : 64U} << 20;
  return network.activation_bytes() + input_bytes + libraries;
}

int largest_batch(Engine& engine, int ranks_on_device, int most, double share_of_free) {
  const auto free = static_cast<double>(free_share(engine, ranks_on_device));
  const auto limit = static_cast<std::size_t>(free * share_of_free);
  std::int32_t largest = engine.step.computes() ? largest_planned(engine, limit, most) : most;
  const View value(&largest, 1, DataType::int32, Place::host);
  engine.host().all_reduce(value, value, Reduction::min, engine.stream());
  return largest;
}

void check_memory(Engine& engine, int ranks_on_device) {
  const std::size_t free = free_share(engine, ranks_on_device);
  const int batch = engine.settings().network.batch_size;
  const std::size_t needed = bytes_needed(engine.model.network(),
                                          engine.settings().input_bytes(engine.settings().network));
  const bool fits = needed <= free || !engine.step.computes();
  if (on_all_ranks(engine, fits)) return;
  if (fits)
    throw BatchTooLarge(fmt::format("--batch-size {}: another rank has too little memory", batch));

  const int largest = largest_planned(engine, free, batch - 1);
  throw BatchTooLarge(
      fmt::format("--batch-size {}: needs {} of {} memory, {} are free. {}{}", batch,
                  readable_bytes(static_cast<double>(needed)), name_of(engine.device().kind()),
                  readable_bytes(static_cast<double>(free)),
                  largest > 0 ? fmt::format("The largest batch that fits is about {}", largest)
                              : std::string("Not even one image fits"),
                  ways_out(engine, largest)));
}

void allocate_activations(Engine& engine) {
  std::string problem;
  try {
    if (engine.step.computes()) engine.model.network().allocate();
  } catch (const OutOfMemory& error) {
    problem = error.what();
  }
  if (on_all_ranks(engine, problem.empty())) return;
  if (problem.empty()) problem = "another rank has too little memory";
  throw BatchTooLarge(
      fmt::format("--batch-size {}: {}", engine.settings().network.batch_size, problem));
}

}  // namespace shakedown::training
