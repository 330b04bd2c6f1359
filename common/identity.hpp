// Which machine and which software a record was made with.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/record.hpp"

namespace shakedown {

class MpiSession;
class OptionSet;

/// The fields of the "run" record: hosts, devices, versions at build and run, options, allow-listed
/// environment. Collective: every rank contributes; the result is complete on each.
Json describe_run(const OptionSet& options, const MpiSession& session, const Backend& backend);

/// The same of a program that measures without a device or a communicator, and their libraries. Not
/// collective.
Json describe_process(const OptionSet& options, const std::vector<std::string>& hosts,
                      const std::vector<std::string>& boot_ids);

/// "environment.NAME" of those variables (as `environ` has them) that bear on a measurement.
Json recorded_environment(const char* const* environment);

/// Highest resident set of this process in bytes; kUnknown where /proc does not have it.
double peak_resident_bytes();

}  // namespace shakedown
