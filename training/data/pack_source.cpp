#include "training/data/pack_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>

#include "common/error.hpp"
#include "common/xxh64.hpp"

namespace shakedown::training {
namespace {

constexpr std::uint64_t kWindow = std::uint64_t{8} << 20;

template <class Struct>
std::span<std::uint8_t> bytes_of(Struct* first, std::size_t count) {
  return {reinterpret_cast<std::uint8_t*>(first), count * sizeof(Struct)};
}

/// Throws UsageError if the file is no pack.
PackFooter read_footer(const InputFile& file) {
  std::array<char, 8> magic{};
  PackFooter footer{};
  if (file.size() < sizeof magic) throw UsageError("it is no packed file");
  file.read(0, bytes_of(magic.data(), magic.size()));
  if (magic != kPackMagic) throw UsageError("it is no packed file");
  if (file.size() < sizeof magic + sizeof footer) throw UsageError("it is truncated");
  file.read(file.size() - sizeof footer, bytes_of(&footer, 1));
  if (footer.magic != kPackMagic) throw UsageError("it is truncated");
  if (footer.version != kPackVersion)
    throw UsageError(fmt::format("it has version {} of the format, and version {} is supported",
                                 footer.version, kPackVersion));
  return footer;
}

}  // namespace

bool is_packed_file(const std::string& path) {
  std::array<char, 8> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return magic == kPackMagic;
}

PackSource::PackSource(const std::string& path, bool by_windows) try : root_(path), file_(path) {
  read_index();
  file_.expect_random_reads();
  if (by_windows) windows_ = std::make_unique<std::atomic_flag[]>(file_.size() / kWindow + 1);
} catch (const UsageError& error) {
  throw UsageError(fmt::format("packed file {}: {}", path, error.what()));
}

/// No field is believed before it was compared with the size of the file.
void PackSource::read_index() {
  const PackFooter footer = read_footer(file_);
  const std::uint64_t rest = file_.size() - sizeof kPackMagic - sizeof footer;
  if (footer.index_bytes > rest || footer.images > footer.index_bytes / sizeof(PackEntry))
    throw UsageError("its index is larger than the file");
  std::vector<std::uint8_t> index(footer.index_bytes);
  file_.read(file_.size() - sizeof footer - footer.index_bytes, index);
  index_checksum_ = xxh64(index);
  if (index_checksum_ != footer.index_checksum)
    throw UsageError("the checksum of its index is wrong");

  entries_.resize(footer.images);
  const std::span<std::uint8_t> entries = bytes_of(entries_.data(), entries_.size());
  if (entries.empty()) throw UsageError("it has no images");
  std::memcpy(entries.data(), index.data(), entries.size());
  names_.assign(index.begin() + static_cast<std::ptrdiff_t>(entries.size()), index.end());
  if (footer.classes > names_.size()) throw UsageError("its index has too few names");
  parse_names(footer.classes);
  check_entries(rest - footer.index_bytes);
}

/// Splits names_ into as many classes, and a path per image.
void PackSource::parse_names(std::size_t classes) {
  std::size_t at = 0;
  const auto next = [&] {
    const std::size_t begin = at, end = names_.find('\0', at);
    if (end == std::string::npos) throw UsageError("its index has too few names");
    at = end + 1;
    return begin;
  };
  for (std::size_t i = 0; i < classes; ++i) {
    const std::size_t begin = next();
    classes_.push_back(names_.substr(begin, at - 1 - begin));
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) paths_.push_back(next());
  paths_.push_back(at);
  if (at != names_.size()) throw UsageError("its index has more names than images and classes");
}

void PackSource::check_entries(std::uint64_t payload_bytes) {
  std::uint64_t end = sizeof kPackMagic;  // sums of 32-bit numbers in 64 bits: no overflow
  for (const PackEntry& entry : entries_) {
    if (entry.label >= classes_.size())
      throw UsageError(fmt::format("image {} has no class", begins_.size()));
    begins_.push_back(end);
    end += entry.bytes;
  }
  if (end != sizeof kPackMagic + payload_bytes)
    throw UsageError("its images are not as large as its index says");
}

std::string PackSource::path(std::size_t index) const {
  return names_.substr(paths_[index], paths_[index + 1] - 1 - paths_[index]);
}

void PackSource::read(std::size_t index, std::vector<std::uint8_t>& bytes,
                      StageTimes& times) const {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const PackEntry& entry = entries_[index];
  if (windows_) read_windows(begins_[index], begins_[index] + entry.bytes);
  bytes.resize(entry.bytes);
  read_patiently("packed file " + root_, {}, [&] { file_.read(begins_[index], bytes); });
  if (xxh64(bytes) != entry.checksum) throw UsageError("its checksum is wrong");
  times.read_s += std::chrono::duration<double>(Clock::now() - start).count();
}

/// Those with a byte of [begin, end) that no thread has read yet, into the page cache alone.
void PackSource::read_windows(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t w = begin / kWindow; w * kWindow < end; ++w) {
    if (windows_[w].test_and_set()) continue;
    const auto window = std::make_unique_for_overwrite<std::uint8_t[]>(kWindow);
    const std::uint64_t bytes = std::min(kWindow, file_.size() - w * kWindow);
    try {
      file_.read(w * kWindow, {window.get(), bytes});
    } catch (const UsageError&) {  // of an image elsewhere, perhaps: each one's own read decides
    }
  }
}

}  // namespace shakedown::training
