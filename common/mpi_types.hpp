// MPI's datatypes and operations of ours.
#pragma once

#include <vector>

#include "common/mpi_handle.hpp"
#include "common/types.hpp"

namespace shakedown {

/// Throws UsageError for the 8-bit floating-point types, which MPI cannot reduce.
MPI_Datatype mpi_type(DataType type);

/// Elements as MPI counts them, in 32 bits. Throws InternalError above.
int count_of(std::size_t count);

/// An MPI operation for each type and reduction; `avg` is a sum, to be divided.
class MpiOperations {
 public:
  MpiOperations();
  MpiOperations(const MpiOperations&) = delete;
  MpiOperations& operator=(const MpiOperations&) = delete;
  ~MpiOperations();

  MPI_Op of(DataType type, Reduction reduction) const;

 private:
  struct Half {
    DataType type;
    Reduction reduction;
    MPI_Op op;
  };
  std::vector<Half> halves_;  // MPI has no 16-bit floating-point types
};

}  // namespace shakedown
