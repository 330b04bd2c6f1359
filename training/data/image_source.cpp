#include "training/data/image_source.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <span>

#include "common/error.hpp"
#include "common/xxh64.hpp"

namespace shakedown::training {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

std::string ImageSource::name(std::size_t index) const {
  return (std::filesystem::path(root()) / path(index)).string();
}

std::uint64_t ImageSource::listing_checksum() const {
  std::string listing;  // no name has a NUL
  for (const std::string& name : classes()) listing += name + '\0';
  for (std::size_t i = 0; i < size(); ++i)
    listing += fmt::format("{} {}", label(i), path(i)) + '\0';
  return xxh64({reinterpret_cast<const std::uint8_t*>(listing.data()), listing.size()});
}

std::string text_of(const ImageSource& source) {
  return fmt::format("{} image{} of {} class{} in {}{}", source.size(),
                     source.size() == 1 ? "" : "s", source.classes().size(),
                     source.classes().size() == 1 ? "" : "es", source.root(), source.remark());
}

void check_same_classes(const ImageSource& training, const ImageSource& validation) {
  if (training.classes() == validation.classes()) return;
  throw UsageError("the training and the validation folder must have the same classes" +
                   names_missing(training.classes(), validation.classes(), validation.root()) +
                   names_missing(validation.classes(), training.classes(), training.root()));
}

void FolderSource::read(std::size_t index, std::vector<std::uint8_t>& bytes,
                        StageTimes& times) const {
  const std::string path = name(index);
  read_patiently("image " + path, retries_, [&] {
    const auto start = Clock::now();
    const InputFile file(path);
    const auto opened = Clock::now();
    bytes.resize(file.size());
    file.read(0, bytes);
    times.open_s += seconds_between(start, opened);
    times.read_s += seconds_between(opened, Clock::now());
  });
}

}  // namespace shakedown::training
