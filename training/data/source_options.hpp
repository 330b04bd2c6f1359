// Options about which images there are, and where they lie.
#pragma once

#include <string>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct SourceOptions {
  std::string data_dir;   // or train_dir, or neither: synthetic
  std::string train_dir;  // a folder or a packed file
  std::string val_dir;
  bool cache = false;
  int max_bad_images = 0;
  bool exif = false;
  std::string remark;  // of find_data: what is not validated; else empty

  bool synthetic() const { return data_dir.empty() && train_dir.empty(); }
};
void declare_options(OptionSet& options, SourceOptions& values);

/// Sets train_dir and val_dir, as far as the run needs them and val_dir is not given, to what
/// data_dir has: train.pack or train/, val.pack or val/. A data_dir without the former is itself
/// the training folder. Looks at the disk. Throws UsageError where what is evaluated is missing, and
/// where the folders in data_dir are splits under other names.
void find_data(SourceOptions& options, bool trains, bool validates);

}  // namespace shakedown::training
