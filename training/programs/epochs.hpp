// Training over epochs of a data folder, with validation.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"
#include "training/step/schedule.hpp"

namespace shakedown::training {

struct EpochSettings {
  int epochs = 1;
  double learning_rate = 0.1;
  ScheduleOptions schedule;
};

/// Trains and validates; prints one line an epoch and writes one "epoch" record, with `identity`'s
/// fields. `validation` may be null. With 0 epochs it only validates. Throws FailError when the
/// loss is not finite, or every step of an epoch was skipped.
void train_epochs(Engine& engine, BatchSource& training, long batches_per_epoch,
                  BatchSource* validation, const EpochSettings& settings, const Json& identity,
                  const MpiSession& session, Record& record);

}  // namespace shakedown::training
