// One rank's engine: its model and the step that trains it, on one compute stream. All memory is
// allocated before the first step.
#pragma once

#include <cstddef>
#include <functional>

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
  double learning_rate() const { return settings().optimizer.learning_rate; }  // before a schedule
  Device& device() const { return model.device(); }
  Stream& stream() { return model.stream(); }
  Communicator& world() const { return *backend.world; }
  Communicator& host() const { return *backend.host; }

  Backend& backend;
  ModelState model;
  Step step;
};

// The device memory that a batch needs, by the plan, compared with what is free.

/// How many ranks share a device's memory: on the cpu backend those of a host, else one.
int ranks_on_device(const Backend& backend, const MpiSession& ranks);

/// Collective, in the place of Engine::allocate(): the largest batch, up to `most`, that would fit
/// on every rank into this share of the free memory; 0 where none does.
int largest_batch(Engine& engine, int ranks_on_device, int most, double share_of_free);

// The largest batch that fits into memory. A plan returns the bytes of any batch, but takes a
// while.

/// The largest of 1..most whose bytes are at most `limit`; 0 where none is. `bytes_of` does not
/// fall as batches grow; it is asked as seldom as it nearly is a straight line.
int largest_fitting(std::size_t limit, int most, const std::function<std::size_t(int)>& bytes_of);

}  // namespace shakedown::training
