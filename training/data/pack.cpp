#include "training/data/pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <system_error>
#include <thread>

#include "common/hash.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

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

PackSource::PackSource(const std::string& path) try : root_(path), file_(path) {
  read_index();
  file_.expect_random_reads();
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
                      InputTimes& times) const {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const PackEntry& entry = entries_[index];
  bytes.resize(entry.bytes);
  read_patiently("packed file " + root_, {}, [&] { file_.read(begins_[index], bytes); });
  if (xxh64(bytes) != entry.checksum) throw UsageError("its checksum is wrong");
  times.read_s += std::chrono::duration<double>(Clock::now() - start).count();
}

namespace {

using FileBytes = std::vector<std::uint8_t>;

constexpr std::size_t kPerRound = 256;  // images in memory at a time

template <class Value>
void write_values(std::ostream& out, const Value* values, std::size_t count) {
  out.write(reinterpret_cast<const char*>(values),
            static_cast<std::streamsize>(count * sizeof(Value)));
}

/// Image `first` and those that follow it, one per element of `images`.
void read_images(const ImageSource& source, std::size_t first, int threads,
                 std::vector<FileBytes>& images) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> errors(images.size());
  const auto work = [&] {
    InputTimes times;
    for (std::size_t i = next++; i < images.size(); i = next++) {
      try {
        source.read(first + i, images[i], times);
      } catch (const UsageError& error) {
        errors[i] = std::make_exception_ptr(
            UsageError(fmt::format("image {}: {}", source.name(first + i), error.what())));
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> readers;
    try {
      for (int i = 0; i < threads; ++i) readers.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads: those that there are read all
      if (readers.empty()) work();
    }
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

PackEntry entry_of(const ImageSource& source, std::size_t index, const FileBytes& image) {
  if (image.size() > UINT32_MAX)
    throw UsageError(
        fmt::format("image {}: {} bytes are more than the 4 GiB that a packed file "
                    "can hold of an image",
                    source.name(index), image.size()));
  return {xxh64(image), static_cast<std::uint32_t>(image.size()),
          static_cast<std::uint32_t>(source.label(index))};
}

void write_index(std::ostream& out, const ImageSource& source,
                 const std::vector<PackEntry>& entries) {
  const auto* const first = reinterpret_cast<const std::uint8_t*>(entries.data());
  FileBytes index(first, first + entries.size() * sizeof(PackEntry));
  const auto append = [&](const std::string& name) {
    index.insert(index.end(), name.begin(), name.end());
    index.push_back(0);
  };
  for (const std::string& name : source.classes()) append(name);
  for (std::size_t i = 0; i < entries.size(); ++i) append(source.path(i));
  const PackFooter footer{entries.size(), source.classes().size(),
                          index.size(),   xxh64(index),
                          kPackVersion,   kPackMagic};
  write_values(out, index.data(), index.size());
  write_values(out, &footer, 1);
}

}  // namespace

Packed write_pack(const ImageSource& source, const Output& output, int threads,
                  const std::function<void(std::size_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  Packed packed{static_cast<long>(source.size()), std::ssize(source.classes()), 0, 0};
  write_file(output, [&](std::ostream& out) {
    write_values(out, kPackMagic.data(), kPackMagic.size());
    std::vector<PackEntry> entries;
    std::vector<FileBytes> images;
    while (entries.size() < source.size() && out) {
      images.resize(std::min(kPerRound, source.size() - entries.size()));
      read_images(source, entries.size(), threads, images);
      for (const FileBytes& image : images) {
        entries.push_back(entry_of(source, entries.size(), image));
        packed.bytes += image.size();
        if (out) write_values(out, image.data(), image.size());
      }
      progress(entries.size());
    }
    if (out) write_index(out, source, entries);
  });
  packed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return packed;
}

std::string text_of(const Packed& packed) {
  const double bytes = static_cast<double>(packed.bytes);
  return fmt::format("{} of {}, {} in {:.3g} s: {}/s", counted(packed.images, "image"),
                     counted(packed.classes, "class", "es"), readable_bytes(bytes), packed.seconds,
                     readable_bytes(bytes / packed.seconds));
}

}  // namespace shakedown::training
