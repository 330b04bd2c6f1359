#include "training/data/image_source.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

double seconds_between(std::chrono::steady_clock::time_point start,
                       std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

void FolderSource::read(std::size_t index, std::vector<std::uint8_t>& bytes,
                        StageTimes& times) const {
  const auto start = std::chrono::steady_clock::now();
  const std::string& path = folder_.samples[index].path;
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw UsageError("cannot be read: " + error.message());
  std::ifstream file(path, std::ios::binary);
  const auto opened = std::chrono::steady_clock::now();
  bytes.resize(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!file) throw UsageError("cannot be read");
  times.open_s += seconds_between(start, opened);
  times.read_s += seconds_between(opened, std::chrono::steady_clock::now());
}

}  // namespace shakedown::training
