// What memory a batch needs, by the plan, and what there is.
#include <fmt/format.h>

#include <limits>

#include "common/mpi_session.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"
#include "training/step/memory_search.hpp"

namespace shakedown::training {

int ranks_on_device(const Backend& backend, const MpiSession& ranks) {
  return backend.kind == BackendKind::cpu ? ranks.local_size() : 1;
}

std::size_t Engine::bytes_needed(const Network& network) const {
  // Room for what libraries take when they are first used.
  const std::size_t aside =
      device().kind() == BackendKind::gpu ? std::size_t{512} << 20 : std::size_t{64} << 20;
  const auto batches = static_cast<std::size_t>(settings_.batches_held);
  return network.activation_bytes() + batches * batch_bytes(network.settings()) + aside;
}

std::size_t Engine::share_of_memory(int ranks_on_device) const {
  return device().memory().free_bytes / static_cast<std::size_t>(ranks_on_device);
}

/// On this rank. What a batch needs is planned, not guessed: workspaces do not grow with it.
/// Weights are allocated already.
int Engine::largest_batch(std::size_t limit, int most) const {
  return largest_fitting(limit, most, [&](int batch_size) {
    NetworkSettings settings = settings_.network;
    settings.batch_size = batch_size;
    try {
      return bytes_needed(Network(settings, device(), *stream_, nullptr));
    } catch (const UsageError&) {  // no batch for a norm, or for a library
      return std::numeric_limits<std::size_t>::max();
    }
  });
}

bool Engine::on_all_ranks(bool mine) const {
  float all = mine ? 1 : 0;
  const View flag(&all, 1, DataType::float32, Place::host);
  backend_.host->all_reduce(flag, flag, Reduction::min, *stream_);
  return all > 0;
}

int Engine::largest_batch(int ranks_on_device, int most, double share_of_free) const {
  const auto free = static_cast<double>(share_of_memory(ranks_on_device));
  const auto limit = static_cast<std::size_t>(free * share_of_free);
  std::int32_t largest = computes() ? largest_batch(limit, most) : most;
  const View value(&largest, 1, DataType::int32, Place::host);
  backend_.host->all_reduce(value, value, Reduction::min, *stream_);
  return largest;
}

void Engine::allocate_activations() {
  std::string problem;
  try {
    if (computes()) network_.allocate();
  } catch (const OutOfMemory& error) {
    problem = error.what();
  }
  if (on_all_ranks(problem.empty())) return;
  if (problem.empty()) problem = "another rank has too little memory";
  throw BatchTooLarge(fmt::format("--batch-size {}: {}", settings_.network.batch_size, problem));
}

void Engine::check_memory(int ranks_on_device) const {
  const std::size_t share = share_of_memory(ranks_on_device);
  const auto batch = settings_.network.batch_size;
  const std::size_t needed = bytes_needed(network_);
  const bool fits = needed <= share || !computes();
  if (on_all_ranks(fits)) return;
  if (fits)
    throw BatchTooLarge(fmt::format("--batch-size {}: another rank has too little memory", batch));

  const int largest = largest_batch(share, batch - 1);
  std::string help;
  if (device().kind() == BackendKind::gpu && size_of(compute_type(settings_.network.precision)) > 2)
    help += "; --amp (fp16) takes about half";
  if (largest > 0)
    help += fmt::format("; --accumulate {} with a smaller batch keeps as many images an update",
                        (batch + largest - 1) / largest);
  if (backend_.world->size() > 1 && settings_.strategy.strategy != "fsdp")
    help += "; --strategy fsdp shares the weights' memory";
  throw BatchTooLarge(
      fmt::format("--batch-size {}: needs {} of {} memory, {} are free. {}{}", batch,
                  readable_bytes(static_cast<double>(needed)), name_of(device().kind()),
                  readable_bytes(static_cast<double>(share)),
                  largest > 0 ? fmt::format("The largest batch that fits is about {}", largest)
                              : std::string("Not even one image fits"),
                  help));
}

}  // namespace shakedown::training
