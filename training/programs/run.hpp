// The context of each kind of run of bin/train.
#pragma once

#include <functional>

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/measure/records.hpp"
#include "training/programs/detector_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct Run {
  Engine& engine;
  BatchSource& batches;
  const Identity& identity;
  const MpiSession& session;
  Record& record;
  InputSetup input = {};
  std::function<long()> bad_images = nullptr;  // of training so far, on all ranks; collective
  DetectorSettings detector = {};

  /// Writes a record of this configuration.
  void write(const char* kind, const Json& fields) const;
};

}  // namespace shakedown::training
