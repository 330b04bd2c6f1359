// Types, reductions and versions by name: Shakedown's own, and those of nccl-tests.
#pragma once

#include <string>

#include "common/types.hpp"

namespace shakedown::collectives {

/// "float" for float32.
const char* nccl_tests_name_of(DataType type);

/// "2.28.9" as ncclGetVersion and nccl-tests have it: 22809.
int nccl_version_code(const std::string& version);

/// "0000:1b:00.0" as nccl-tests has it: "0000:1b:00"; "cpu" where there is none, since parsers of
/// its table need a word.
std::string nccl_tests_device(const std::string& pci_id);

/// Parses either of the two names. Throws UsageError naming the option and the known names.
DataType parse_data_type(const std::string& option, const std::string& name);
Reduction parse_reduction(const std::string& option, const std::string& name);

}  // namespace shakedown::collectives
