#include "training/step/engine.hpp"

#include <fmt/format.h>

#include "common/error.hpp"
#include "training/step/memory_budget.hpp"

namespace shakedown::training {

Engine::Engine(const EngineSettings& settings, Backend& backend_of_rank) try
    : backend(backend_of_rank), model(settings, backend), step(settings, backend, model) {
} catch (const OutOfMemory& error) {  // allocate() names the batch
  throw OutOfMemory(fmt::format("--model {}, --classes {}: {}", settings.network.architecture.name,
                                settings.network.classes, error.what()));
}

void Engine::allocate(int ranks_on_device) {
  check_memory(*this, ranks_on_device);
  model.restart();  // before the convolutions are tuned: zero weights would run faster
  if (step.computes()) model.gather_weights();
  step.drop_graphs();
  allocate_activations(*this);
}

}  // namespace shakedown::training
