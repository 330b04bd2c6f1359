// NCCL in the project's terms: its errors, types, bootstrap and memory.
#pragma once

#include <nccl.h>

#include <memory>

#include "common/communicator.hpp"
#include "common/types.hpp"

namespace shakedown::gpu {

/// Throws InconclusiveError where a peer is lost or the system failed, InternalError otherwise.
void check_nccl(ncclResult_t status, const char* expression, const char* file, int line,
                ncclComm_t comm);
#define CHECK_NCCL(expression, comm) \
  check_nccl((expression), #expression, __FILE__, __LINE__, (comm))

/// Throws UsageError where the NCCL that this was built with has no such type.
ncclDataType_t nccl_type(DataType type);
ncclRedOp_t nccl_operation(Reduction op);

/// ncclCommInitRank, in a thread: it has no time-out and waits for every rank for ever.
/// Throws TimeoutError after timeout_s and leaves the thread running, as the job ends then.
/// `ctas`: CTAs per kernel; 0: NCCL's default.
ncclComm_t init_rank(ncclUniqueId id, int ranks, int rank, int ctas, double timeout_s);

/// NCCL's own memory, which peers can map, and its registration.
std::unique_ptr<TransportMemory> allocate_nccl_memory(ncclComm_t comm, std::size_t bytes,
                                                      Registration registration);

}  // namespace shakedown::gpu
