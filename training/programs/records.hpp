// The fields of the records that the programs add to those of measure/records.hpp: each key is
// written here and nowhere else.
#pragma once

#include "common/record.hpp"
#include "training/programs/comparison.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/epochs.hpp"

namespace shakedown::training {

Json record_of(const EpochResult& result);
/// Nothing of synthetic data.
Json record_of(const InputSetup& setup);
Json record_of(const CheckpointReport& written);
Json record_of(const LargestBatch& found);
/// The measured figures, and those derived from the others of the round.
Json record_of(const Round& round);
Json ratios_of(const Round& round);

}  // namespace shakedown::training
