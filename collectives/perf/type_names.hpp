// Types and reductions by name: Shakedown's own, and those of nccl-tests.
#pragma once

#include <string>

#include "common/types.hpp"

namespace shakedown::collectives {

/// "float" for float32.
const char* nccl_tests_name_of(DataType type);

/// Parses either of the two names. Throws UsageError naming the option and the known names.
DataType parse_data_type(const std::string& option, const std::string& name);
Reduction parse_reduction(const std::string& option, const std::string& name);

}  // namespace shakedown::collectives
