// A packed file (pack_format.hpp), written by write_pack.
#pragma once

#include <atomic>
#include <memory>

#include "training/data/image_source.hpp"
#include "training/data/input_file.hpp"
#include "training/data/pack_format.hpp"

namespace shakedown::training {

/// Whether the file begins as one.
bool is_packed_file(const std::string& path);

/// Each image is read by its own, from one descriptor; its checksum is compared each time.
class PackSource final : public ImageSource {
 public:
  /// Reads the index. With `by_windows` the first image that is read of each window of 8 MiB brings
  /// the whole window into the page cache, which the ranks of a host share: large sequential reads
  /// until the whole file is in memory, for a file that fits there. Throws UsageError that names
  /// the file.
  explicit PackSource(const std::string& path, bool by_windows = false);

  std::size_t size() const override { return entries_.size(); }
  std::int32_t label(std::size_t index) const override {
    return static_cast<std::int32_t>(entries_[index].label);
  }
  std::string path(std::size_t index) const override;
  const std::string& root() const override { return root_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::uint64_t checksum() const override { return index_checksum_; }
  void read(std::size_t index, std::vector<std::uint8_t>& bytes, StageTimes& times) const override;

 private:
  void read_index();
  void check_entries(std::uint64_t payload_bytes);
  void parse_names(std::size_t classes);
  void read_windows(std::uint64_t begin, std::uint64_t end) const;

  const std::string root_;
  const InputFile file_;
  std::uint64_t index_checksum_ = 0;
  std::vector<PackEntry> entries_;
  std::vector<std::uint64_t> begins_;  // of the images in the file
  std::vector<std::string> classes_;
  std::string names_;                            // the images' paths
  std::vector<std::size_t> paths_;               // where each starts in names_, and the end
  std::unique_ptr<std::atomic_flag[]> windows_;  // that were read; null: none is
};

}  // namespace shakedown::training
