#include "training/data/write_pack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>

#include "common/error.hpp"
#include "common/xxh64.hpp"
#include "training/data/pack_format.hpp"

namespace shakedown::training {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kPerRound = 256;  // images in memory at a time

template <class Value>
void write_values(std::ostream& out, const Value* values, std::size_t count) {
  out.write(reinterpret_cast<const char*>(values),
            static_cast<std::streamsize>(count * sizeof(Value)));
}

/// Image `first` and those that follow it, one per element of `images`.
void read_images(const ImageSource& source, std::size_t first, int threads,
                 std::vector<Bytes>& images) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> errors(images.size());
  const auto work = [&] {
    StageTimes times;
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

PackEntry entry_of(const ImageSource& source, std::size_t index, const Bytes& image) {
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
  Bytes index(first, first + entries.size() * sizeof(PackEntry));
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
  Packed packed{source.size(), source.classes().size(), 0, 0};
  write_file(output, [&](std::ostream& out) {
    write_values(out, kPackMagic.data(), kPackMagic.size());
    std::vector<PackEntry> entries;
    std::vector<Bytes> images;
    while (entries.size() < source.size() && out) {
      images.resize(std::min(kPerRound, source.size() - entries.size()));
      read_images(source, entries.size(), threads, images);
      for (const Bytes& image : images) {
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
  const double gb = static_cast<double>(packed.bytes) * 1e-9;
  return fmt::format("{} image{} of {} class{}, {:.2f} GB in {:.1f} s: {:.2f} GB/s", packed.images,
                     packed.images == 1 ? "" : "s", packed.classes, packed.classes == 1 ? "" : "es",
                     gb, packed.seconds, gb / packed.seconds);
}

}  // namespace shakedown::training
