// What a job measures for the step model of results/report: times of its own exchanges, by size,
// and when backward has the gradients of `none`.
#pragma once

#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/measure/breakdown.hpp"

namespace shakedown::training {

/// Measures exchanges of a gradient buffer of `largest_bytes` and of parts of it, down to a
/// thirty-second: the sizes of buckets. Between two exchanges a step computes, which leaves none of
/// the gradients in the caches; so before each exchange every rank touches `step_bytes` of other
/// memory. Medians, as the fields of the `link_cost` records: {exchanges around a ring, sends of
/// all ranks to rank 0, with the rate at which it averages them}; none for one rank, and where a
/// rank has no memory for it. Every rank calls it; the same on all.
std::vector<Json> measure_links(Backend& backend, DataType type, std::size_t largest_bytes,
                                std::size_t step_bytes, const MpiSession& session);

/// The fields of a `ready` record, of the traced steps of `none`: its gradients in the order in
/// which backward finishes them, by parameter.
Json ready_record(Engine& engine, const Trace& steps);

}  // namespace shakedown::training
