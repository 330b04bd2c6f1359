// A file that any thread reads at any place.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace shakedown::training {

/// How often a read is repeated, and how long after the first error; then four times as long each.
struct ReadRetries {
  int attempts = 5;
  std::chrono::milliseconds first_wait{100};  // 8.5 s in all: a network file system recovers
};
/// Calls `read` again where it throws a ReadError. Throws InconclusiveError naming the file where
/// it always does.
void read_patiently(const std::string& file, const ReadRetries& retries,
                    const std::function<void()>& read);

/// Errors are UsageErrors with the reason only: the caller names the file.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// When it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `to` with the bytes from `offset` on.
  void read(std::uint64_t offset, std::span<std::uint8_t> to) const;
  /// Stops the kernel from reading more than what is requested.
  void expect_random_reads() const;

 private:
  int descriptor_;
  std::uint64_t size_ = 0;
};

}  // namespace shakedown::training
