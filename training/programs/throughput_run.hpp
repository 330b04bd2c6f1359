// bin/train's throughput run: the certificate, the timed steps, and where their time goes.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/error.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/run.hpp"

namespace shakedown::training {

/// Options that the conditions of its `metric` lines have in addition to an Identity; none: there
/// is no record.
using Conditions = std::optional<std::map<std::string, std::string>>;

/// Certifies where `certifies`, measures, writes records and files, and prints a summary.
/// `largest`: the batch is the largest that fits, which the record has. Returns `fail` where the
/// certificate failed; throws FailError when the loss is not finite any more, or nothing was
/// trained. Weights that are not finite are not saved. Collective.
ExitCode run_throughput(const Run& run, const TimingOptions& timing, const Conditions& conditions,
                        bool certifies, bool largest, const OutputFiles& files);

}  // namespace shakedown::training
