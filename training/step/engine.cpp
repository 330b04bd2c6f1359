#include "training/step/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common/mpi_session.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {

Engine::Engine(const EngineSettings& settings, Backend& backend_of_rank) try
    : backend(backend_of_rank), model(settings, backend), step(settings, backend, model) {
} catch (const OutOfMemory& error) {  // allocate() names the batch
  throw OutOfMemory(fmt::format("--model {}, --classes {}: {}", settings.network.architecture.name,
                                settings.network.classes, error.what()));
}

namespace {

std::size_t free_share(const Engine& engine, int ranks_on_device) {
  return engine.device().memory().free_bytes / static_cast<std::size_t>(ranks_on_device);
}

/// Of a rank's activations and input, plus a reserve for what libraries allocate on first use.
/// Weights are allocated already.
std::size_t bytes_needed(const Network& network, std::size_t input_bytes) {
  const bool gpu = network.device().kind() == BackendKind::gpu;
  const std::size_t libraries = std::size_t{gpu ? 512U : 64U} << 20;
  return network.activation_bytes() + input_bytes + libraries;
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
                        (settings.network.batch_size - 1) / largest + 1);
  if (engine.world().size() > 1 && settings.strategy.strategy != "fsdp")
    help += "; --strategy fsdp shares the weights' memory";
  return help;
}

/// Throws BatchTooLarge where the engine's batch does not fit by the plan.
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

/// Throws BatchTooLarge where the device has less memory than the plan needs.
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

}  // namespace

int ranks_on_device(const Backend& backend, const MpiSession& ranks) {
  return backend.kind == BackendKind::cpu ? ranks.local_size() : 1;
}

int largest_batch(Engine& engine, int ranks_on_device, int most, double share_of_free) {
  const auto free = static_cast<double>(free_share(engine, ranks_on_device));
  const auto limit = static_cast<std::size_t>(free * share_of_free);
  std::int32_t largest = engine.step.computes() ? largest_planned(engine, limit, most) : most;
  const View value(&largest, 1, DataType::int32, Place::host);
  engine.host().all_reduce(value, value, Reduction::min, engine.stream());
  return largest;
}

void Engine::allocate(int ranks_on_device) {
  check_memory(*this, ranks_on_device);
  model.restart();  // before the convolutions are tuned: zero weights would run faster
  if (step.computes()) model.gather_weights();
  step.drop_graphs();
  allocate_activations(*this);
}

namespace {

struct Point {
  int batch;
  double bytes;
};

/// Where the line through two points comes to `limit`, between these bounds.
int crossing(Point a, Point b, double limit, int least, int most) {
  const double slope = (b.bytes - a.bytes) / (b.batch - a.batch);
  const double at = slope > 0 ? a.batch + (limit - a.bytes) / slope : most;
  return static_cast<int>(std::clamp<double>(at, least, most));
}

}  // namespace

int largest_fitting(std::size_t limit, int most, const std::function<std::size_t(int)>& bytes_of) {
  const auto allowed = static_cast<double>(limit);
  const auto ask = [&](int batch) { return Point{batch, static_cast<double>(bytes_of(batch))}; };
  Point fits{0, 0};  // what is known, nearest to the limit on either side
  Point other{0, 0};
  int too_large = most + 1;
  for (bool halve = false; fits.batch + 1 < too_large; halve = !halve) {
    int guess = std::min(2, too_large - 1);  // one image may be no batch: norms want two values
    if (fits.batch > 0 && halve && too_large <= most)
      guess = fits.batch + (too_large - fits.batch) / 2;  // should it be no line
    else if (fits.batch > 0)
      guess = crossing(fits, other, allowed, fits.batch + 1, too_large - 1);
    const Point asked = ask(guess);
    if (asked.bytes <= allowed) {
      if (too_large > most) other = fits;  // else it stays the one on the other side
      fits = asked;
    } else {
      too_large = guess;
      other = asked;
    }
  }
  return fits.batch;
}

}  // namespace shakedown::training
