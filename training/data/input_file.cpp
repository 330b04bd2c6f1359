#include "training/data/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

[[noreturn]] void refuse(int why) {
  throw ReadError(fmt::format("cannot be read: {}", std::strerror(why)));
}

/// Anything but a regular file is refused, and never waited for.
std::uint64_t size_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) refuse(errno);
  if (!S_ISREG(status.st_mode)) throw UsageError("cannot be read: it is no regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

void read_patiently(const std::string& file, const ReadRetries& retries,
                    const std::function<void()>& read) {
  auto wait = retries.first_wait;
  for (int attempt = 1;; ++attempt) {
    try {
      return read();
    } catch (const ReadError& error) {
      if (attempt == retries.attempts)
        throw InconclusiveError(fmt::format("{}: {}, {} times", file, error.what(), attempt));
    }
    std::this_thread::sleep_for(wait);
    wait *= 4;
  }
}

InputFile::InputFile(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) refuse(errno);
  try {
    size_ = size_of(descriptor_);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(errno);
    if (got == 0) throw ReadError("cannot be read: the file ends early");
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

void InputFile::expect_random_reads() const {
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);  // advice: nothing depends on it
}

}  // namespace shakedown::training
