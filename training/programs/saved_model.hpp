// The network of a .safetensors file that was written here, from its metadata.
#pragma once

#include <string>
#include <vector>

#include "resnet/tensor_file.hpp"

namespace shakedown {
class OptionSet;
struct ModelOptions;
}  // namespace shakedown

namespace shakedown::training {

class ImageSource;

/// Empty if the file does not have it, as one from elsewhere.
struct SavedModel {
  std::string model;
  int image_size = 0;
  std::vector<std::string> classes;  // in the order of the classifier; none after synthetic data
};

Metadata metadata_of(const SavedModel& saved);
/// Throws UsageError naming `file` where the metadata is not understood.
SavedModel saved_model_of(const Metadata& metadata, const std::string& file);

/// --model and --image-size become those of --weights unless they were given. Throws UsageError
/// where --model was and the file holds another. Reads the file's header. `set` parsed the options.
void take_saved_model(const OptionSet& set, ModelOptions& options);

/// Throws UsageError naming the classes in which `images` and the file differ. Images to train on
/// may have another number of them: then the classifier starts anew.
void check_classes(const SavedModel& saved, const std::string& file, const ImageSource& images,
                   bool evaluates);

}  // namespace shakedown::training
