// Command-line options of the pipeline from images to batches.
#pragma once

#include <string>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct InputOptions {
  std::string workers = "auto";  // or a number
  int prefetch = 4;
  std::string decoder = "auto";
  double decoder_share = 100;  // percent
};

void declare_options(OptionSet& options, InputOptions& values);

/// Loader threads of a rank that may use this many cores.
int workers_of(const InputOptions& options, int cores);

}  // namespace shakedown::training
