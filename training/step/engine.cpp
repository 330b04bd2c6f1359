#include "training/step/engine.hpp"

#include "training/step/memory_budget.hpp"

namespace shakedown::training {

Engine::Engine(const EngineSettings& settings, Backend& backend_of_rank)
    : backend(backend_of_rank), model(settings, backend), step(settings, backend, model) {}

void Engine::allocate(int ranks_on_device) {
  check_memory(*this, ranks_on_device);
  model.restart();  // before the convolutions are tuned: zero weights would run faster
  if (step.computes()) model.gather_weights();
  step.drop_graphs();
  allocate_activations(*this);
}

}  // namespace shakedown::training
