// Packed files: all images of a folder in one, written once and read by many ranks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "common/output_file.hpp"
#include "training/data/source.hpp"

namespace shakedown::training {

// The layout of a packed file: the images of a folder in one file, in their order. Little-endian.
//
//   kMagic
//   the images' bytes, one after another, without gaps
//   the index: a PackEntry per image; the names of the classes, then the images' paths below the
//   folder, each ended by a NUL
//   a PackFooter, which ends the file

constexpr std::array<char, 8> kPackMagic{'S', 'H', 'A', 'K', 'P', 'A', 'C', 'K'};
constexpr std::uint64_t kPackVersion = 1;

struct PackEntry {
  std::uint64_t checksum;  // XXH64 of the image
  std::uint32_t bytes;
  std::uint32_t label;
};
static_assert(sizeof(PackEntry) == 16);

struct PackFooter {
  std::uint64_t images;
  std::uint64_t classes;
  std::uint64_t index_bytes;
  std::uint64_t index_checksum;  // XXH64 of the index
  std::uint64_t version;
  std::array<char, 8> magic;
};
static_assert(sizeof(PackFooter) == 48);

// A packed file, written by write_pack.

/// Whether the file begins as one.
bool is_packed_file(const std::string& path);

/// Each image is read by its own, from one descriptor; its checksum is compared each time.
class PackSource final : public ImageSource {
 public:
  /// Reads the index. Throws UsageError that names the file.
  explicit PackSource(const std::string& path);

  std::size_t size() const override { return entries_.size(); }
  std::int32_t label(std::size_t index) const override {
    return static_cast<std::int32_t>(entries_[index].label);
  }
  std::string path(std::size_t index) const override;
  const std::string& root() const override { return root_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::uint64_t checksum() const override { return index_checksum_; }
  void read(std::size_t index, std::vector<std::uint8_t>& bytes, InputTimes& times) const override;

 private:
  void read_index();
  void check_entries(std::uint64_t payload_bytes);
  void parse_names(std::size_t classes);

  const std::string root_;
  const InputFile file_;
  std::uint64_t index_checksum_ = 0;
  std::vector<PackEntry> entries_;
  std::vector<std::uint64_t> begins_;  // of the images in the file
  std::vector<std::string> classes_;
  std::string names_;               // the images' paths
  std::vector<std::size_t> paths_;  // where each starts in names_, and the end
};

// Writes the images of a source as one packed file.

struct Packed {
  long images = 0;
  long classes = 0;
  std::uint64_t bytes = 0;  // of the images
  double seconds = 0;
};

/// Reads with this many threads. `progress` is called with the number of images written. The file
/// is there whole or not at all. Throws as write_file, UsageError naming a file that is no image's,
/// InconclusiveError naming an image that cannot be read.
Packed write_pack(const ImageSource& source, const Output& output, int threads,
                  const std::function<void(std::size_t)>& progress);

/// "6000 images of 10 classes, 0.65 GB in 1.3 s: 0.50 GB/s".
std::string text_of(const Packed& packed);

}  // namespace shakedown::training
