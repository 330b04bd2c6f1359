// One rank's engine: its model and the step that trains it, on one compute stream. All memory is
// allocated before the first step.
#pragma once

#include "training/step/model_state.hpp"
#include "training/step/step.hpp"

namespace shakedown::training {

struct Engine {
  /// Plans everything; activations are allocated by allocate().
  Engine(const EngineSettings& settings, Backend& backend);

  /// Collective. Throws BatchTooLarge on every rank when the batch does not fit on one, with the
  /// bytes needed and free there and the largest batch that fits. `ranks_on_device` share the
  /// device's memory.
  void allocate(int ranks_on_device);

  void finish() { model.finish(); }
  const EngineSettings& settings() const { return step.settings(); }
  Device& device() const { return model.device(); }
  Stream& stream() { return model.stream(); }
  Communicator& world() const { return *backend.world; }
  Communicator& host() const { return *backend.host; }

  Backend& backend;
  ModelState model;
  Step step;
};

}  // namespace shakedown::training
