#include <fmt/format.h>

#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"
#include "common/error.hpp"

namespace shakedown::collectives {

const std::vector<Operation>& operations() {
  static const std::vector<Operation> table{
      all_reduce_operation(), all_gather_operation(), reduce_scatter_operation(),
      broadcast_operation(),  reduce_operation(),     all_to_all_operation(),
      gather_operation(),     scatter_operation(),    send_recv_operation(),
  };
  return table;
}

const Operation& find_operation(std::string_view name) {
  std::string known;
  for (const Operation& operation : operations()) {
    if (name == operation.name) return operation;
    known += std::string(operation.name) + ", ";
  }
  throw UsageError(fmt::format("--operation {}: must be one of {}all", name, known));
}

}  // namespace shakedown::collectives
