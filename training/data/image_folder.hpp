// A folder of images with one sub-folder a class, as torchvision's ImageFolder reads it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shakedown::training {

struct Sample {
  std::string path;  // below ImageFolder::root
  int label;         // index into ImageFolder::classes
};

struct ImageFolder {
  std::string root;
  std::vector<std::string> classes;      // names of the sub-folders, sorted
  std::vector<Sample> samples;           // by class, then folder, then file name
  std::map<std::string, long> left_out;  // files of other kinds, by extension in lower case
};

/// Lists the .jpg, .jpeg and .png files (any case) below each class folder; opens none of them.
/// Hidden files and folders, whose names start with a dot, are passed over. Throws UsageError
/// naming the folder that is missing, unreadable, or without classes or images, and the link that
/// leads back to a folder around it.
ImageFolder scan_image_folder(const std::string& root);

/// " (left out: 3 .gif, 1 .txt)", or "".
std::string text_of_left_out(const ImageFolder& folder);

/// "; not in `where`: a, b" with the first few names of `some` that `others` lacks; "" when there
/// are none. Both are sorted. Reports names in Unicode's form NFD, which look like others.
std::string names_missing(const std::vector<std::string>& some,
                          const std::vector<std::string>& others, const std::string& where);

}  // namespace shakedown::training
