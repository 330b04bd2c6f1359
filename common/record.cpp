#include "common/record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "common/error.hpp"
#include "common/host_name.hpp"
#include "common/output_file.hpp"

namespace shakedown {
namespace {

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{}-{}-{:08x}{:08x}", utc_now(), host_name(), random(), random());
}

/// Whether records may be appended to the file: it is empty, or its first line is a record, which a
/// full disk may have cut.
bool holds_a_record(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string first;
  if (!std::getline(in, first)) return true;
  const Json json = Json::parse(first, nullptr, false);
  if (json.is_object()) return json.contains("kind");
  constexpr std::string_view kBeginning = R"({"kind":)";
  return json.is_discarded() && kBeginning.starts_with(first.substr(0, kBeginning.size()));
}

/// Keeps other processes that append to the file out while it lives, where the file system has
/// locks; without them an appended line is whole on all but network file systems.
class Lock {
 public:
  explicit Lock(int file) : file_(file) { flock(file_, LOCK_EX); }
  ~Lock() { flock(file_, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

/// Of a regular file; 0 of another.
off_t size_of(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : 0;
}

/// Whether the last line was cut short: by a full disk, or a copy made while it was written.
bool is_cut(int file, off_t size) {
  char last = '\n';
  return size > 0 && pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

/// Takes back what was written of a line, unless somebody else has appended to it since. Where that
/// fails too, the next line starts on a line of its own.
void remove_half(int file, off_t before, std::size_t written) {
  if (written > 0 && size_of(file) == before + static_cast<off_t>(written)) [[maybe_unused]]
    const int failed = ftruncate(file, before);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

Record::Record(const std::string& path) : path_(path), run_id_(new_run_id()) {
  if (path.empty()) return;
  const auto refuse = [&](int why) {
    throw UsageError(fmt::format("--record {}: cannot be written: {}", path, std::strerror(why)));
  };
  if (const int why = make_folder_of(path); why != 0) refuse(why);
  const bool itself = is_written_itself(path);  // and cannot be read
  if (!itself && !holds_a_record(path))
    throw UsageError(fmt::format(
        "--record {}: is not a record (.jsonl), and would be appended to; name another file",
        path));
  file_ = open(path.c_str(), (itself ? O_WRONLY : O_RDWR) | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) refuse(errno);
}

Record::~Record() {
  if (file_ >= 0) close(file_);
}

void Record::write(const std::string& kind, const Json& fields) {
  const std::lock_guard guard(mutex_);
  if (file_ < 0 || ended_) return;
  ended_ = kind == "end";
  Json line = {{"kind", kind}, {"run_id", run_id_}};
  line.update(fields);
  const Lock lock(file_);
  const off_t before = size_of(file_);
  const std::string text = (is_cut(file_, before) ? "\n" : "") + json_text(line) + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int why = errno;
      remove_half(file_, before, done);
      throw InconclusiveError(
          fmt::format("--record {}: cannot be written: {}", path_, std::strerror(why)));
    }
    done += static_cast<std::size_t>(wrote);
  }
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json merged(Json fields, const Json& more) {
  fields.update(more);
  return fields;
}

}  // namespace shakedown
