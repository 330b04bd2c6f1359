// One function a file of this folder; table.cpp lists them.
#pragma once

#include "collectives/operation.hpp"

namespace shakedown::collectives {

Operation all_reduce_operation();
Operation all_gather_operation();
Operation reduce_scatter_operation();
Operation broadcast_operation();
Operation reduce_operation();
Operation all_to_all_operation();
Operation gather_operation();
Operation scatter_operation();
Operation send_recv_operation();

}  // namespace shakedown::collectives
