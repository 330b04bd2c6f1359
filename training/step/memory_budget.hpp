// The device memory that a batch needs, by the plan, compared with what is free.
#pragma once

#include "common/error.hpp"
#include "training/step/engine.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

/// Thrown on every rank.
struct BatchTooLarge : OutOfMemory {
  using OutOfMemory::OutOfMemory;
};

/// How many ranks share a device's memory: on the cpu backend those of a host, else one.
int ranks_on_device(const Backend& backend, const MpiSession& ranks);

/// Bytes of a rank's activations and input, plus a reserve for what libraries allocate on first
/// use. Weights are allocated already.
std::size_t bytes_needed(const Network& network, std::size_t input_bytes);

/// Collective, in the place of Engine::allocate(): the largest batch, up to `most`, that would fit
/// on every rank into this share of the free memory; 0 where none does.
int largest_batch(Engine& engine, int ranks_on_device, int most, double share_of_free);

/// Collective. Throws BatchTooLarge where the engine's batch does not fit by the plan.
void check_memory(Engine& engine, int ranks_on_device);
/// Collective. Throws BatchTooLarge where the device has less memory than the plan needs.
void allocate_activations(Engine& engine);

}  // namespace shakedown::training
