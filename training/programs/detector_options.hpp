// --check-neighbour and --inject-fault of bin/train.
#pragma once

#include <string>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct DetectorOptions {
  int check_neighbour = 0;   // updates from one check to the next; 0: none
  std::string output = ".";  // folder of capsules
  std::string fault;         // --inject-fault
};
void declare_options(OptionSet& options, DetectorOptions& values);

struct DetectorSettings {
  DetectorOptions options;
  const OptionSet* all_options = nullptr;  // for capsules; null: there is no check
};

}  // namespace shakedown::training
