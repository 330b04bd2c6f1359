// A folder of images with one sub-folder a class, as torchvision's ImageFolder reads it.
#pragma once

#include <string>
#include <vector>

namespace shakedown {

struct Sample {
  std::string path;
  int label;  // index into ImageFolder::classes
};

struct ImageFolder {
  std::string root;
  std::vector<std::string> classes;  // names of the sub-folders, sorted
  std::vector<Sample> samples;       // by class, then folder, then file name
};

/// Lists the .jpg, .jpeg and .png files (any case) below each class folder; opens none of them.
/// Throws UsageError naming the folder that is missing, unreadable, or without classes or images.
ImageFolder scan_image_folder(const std::string& root);

/// Throws UsageError naming the classes that only one of the two folders has.
void check_same_classes(const ImageFolder& training, const ImageFolder& validation);

}  // namespace shakedown
