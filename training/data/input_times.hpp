// The cost of a rank's input, stage by stage, and the stage that limits it.
#pragma once

#include <string>

#include "common/mpi_session.hpp"
#include "training/data/image_source.hpp"

namespace shakedown::training {

/// Sums since the start of the run; the difference of two is a window's.
struct InputTimes {
  double stall_s = 0;          // the compute stream waited for a batch
  StageTimes stages;           // of all workers
  double copy_s = 0;           // host memory to device memory; with DeviceCrops, also their scaling
  double device_decode_s = 0;  // DeviceDecoder::decode
  double images = 0;           // that the workers made or, encoded, passed to the device
  double device_images = 0;    // of these, left to the device
};

StageTimes& operator+=(StageTimes& a, const StageTimes& b);
InputTimes operator+(InputTimes a, const InputTimes& b);
InputTimes operator-(const InputTimes& a, const InputTimes& b);

/// The sum over the ranks, with the longest stall. Collective.
InputTimes over_ranks(const InputTimes& mine, const MpiSession& session);

/// Workers per rank that decode as fast as the JPEG engines of a GPU that trains. Measured on an
/// H200 (ResNet-50, fp16, batch 256, 500x375 pixels): 8,000 images/s by the engines, and 16
/// workers make up to 13,770; 9 make 7,700 at that rate per worker.
inline constexpr int kWorkersLikeEngines = 9;

/// How the input of a rank is set up.
struct InputSetup {
  int workers = 0;              // threads per rank; 0: the data are synthetic
  int cores = 1;                // this rank's share of its host's
  std::string decoder = "cpu";  // of training images: cpu or nvjpeg
  double device_share = 0;      // of the images that the device decodes where it can
  int ranks = 1;                // that load images
  bool packed = false;          // the training images are one packed file
  bool cached = false;          // --cache
};

/// The sentence that names the stage which limits, and what would cure it; "" where the training
/// threads waited for at most 2 % of `seconds`. `times` are over_ranks() of `ranks` that load.
std::string input_advice(const InputTimes& times, const InputSetup& setup, double seconds,
                         int ranks);

}  // namespace shakedown::training
