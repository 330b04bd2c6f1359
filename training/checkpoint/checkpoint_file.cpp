#include "training/checkpoint/checkpoint_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kState = "training_state";
constexpr const char* kChecksum = "checksum";

[[noreturn]] void not_written(const std::string& path, int why) {
  throw InconclusiveError(
      fmt::format("checkpoint {} cannot be written: {}", path, std::strerror(why)));
}

/// Flushes the file's or folder's contents to the disk.
void sync(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) not_written(path, errno);
  const int why = fsync(file) == 0 ? 0 : errno;
  close(file);
  if (why != 0 && why != EINVAL) not_written(path, why);  // EINVAL: folders here need no sync
}

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) not_written(to, errno);
}

std::uint64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += bytes_of(tensor) + 256;
  return bytes;
}

void write_partial(const std::string& path, const Checkpoint& checkpoint) {
  const std::string state = text_of(checkpoint.state);
  Metadata metadata = checkpoint.metadata;
  metadata[kState] = state;
  metadata[kChecksum] = checksum_of(state, checkpoint.tensors);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (out) write_safetensors(out, checkpoint.tensors, metadata);
  out.close();
  if (!out) not_written(path, errno);
  sync(path);
}

const std::string& training_state(const Metadata& metadata, const std::string& path) {
  const auto state = metadata.find(kState);
  if (state == metadata.end() || !metadata.contains(kChecksum))
    throw UsageError(
        fmt::format("{}: holds weights, but no state of a training; --weights {} starts from them",
                    path, path));
  return state->second;
}

CheckpointState state_in(const std::string& text, const std::string& path) {
  try {
    return state_of(text);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

std::string checkpoint_path(const std::string& dir, const std::string& name) {
  return dir + "/" + name + ".safetensors";
}

std::string previous_path(const std::string& dir, const std::string& name) {
  return checkpoint_path(dir, name + ".previous");
}

bool has_checkpoint(const std::string& dir, const std::string& name) {
  std::error_code error;
  for (const std::string& path : {checkpoint_path(dir, name), previous_path(dir, name)})
    if (std::filesystem::status(path, error).type() != std::filesystem::file_type::not_found)
      return true;  // with any other error too
  return false;
}

void check_writable_folder(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const std::string probe = dir + "/.writable";
  if (!std::ofstream(probe))
    throw UsageError(
        fmt::format("--checkpoint-dir {}: cannot be written: {}", dir, std::strerror(errno)));
  std::remove(probe.c_str());
}

void check_space(const std::string& dir, std::uint64_t bytes, const std::string& what) {
  struct statvfs system {};
  if (statvfs(dir.c_str(), &system) != 0) not_written(dir, errno);
  const std::uint64_t free = std::uint64_t{system.f_bavail} * system.f_frsize;
  if (free < bytes)
    throw InconclusiveError(fmt::format("--checkpoint-dir {}: {} needs {}, {} are free", dir, what,
                                        readable_bytes(static_cast<double>(bytes)),
                                        readable_bytes(static_cast<double>(free))));
  if (system.f_files > 0 && system.f_favail == 0)  // some file systems have no fixed number
    throw InconclusiveError(
        fmt::format("--checkpoint-dir {}: {} needs an inode, none is free", dir, what));
}

std::uint64_t write_checkpoint(const std::string& dir, const std::string& name,
                               const Checkpoint& checkpoint) {
  check_space(dir, bytes_of(checkpoint.tensors), name);
  const std::string path = checkpoint_path(dir, name);
  const std::string partial = path + ".partial";
  try {
    write_partial(partial, checkpoint);
    std::error_code error;
    if (std::filesystem::status(path, error).type() != std::filesystem::file_type::not_found)
      rename_file(path, previous_path(dir, name));
    rename_file(partial, path);
  } catch (...) {
    std::remove(partial.c_str());
    throw;
  }
  sync(dir);
  return std::filesystem::file_size(path);
}

Checkpoint read_checkpoint(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.metadata = read_safetensors_metadata(path);
  checkpoint.tensors = read_safetensors(path);
  const std::string& state = training_state(checkpoint.metadata, path);
  if (checksum_of(state, checkpoint.tensors) != checkpoint.metadata.at(kChecksum))
    throw UsageError(fmt::format("{}: is not what was written: its checksum differs", path));
  checkpoint.state = state_in(state, path);
  return checkpoint;
}

RunFacts read_facts(const std::string& path) {
  const Metadata metadata = read_safetensors_metadata(path);
  return state_in(training_state(metadata, path), path).facts;
}

std::optional<FoundCheckpoint> find_checkpoint(const std::string& dir) {
  std::vector<std::string> refused;
  for (const std::string& path : {checkpoint_path(dir, kLatest), previous_path(dir, kLatest)}) {
    std::error_code error;
    if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found)
      continue;  // any other error must not start the training afresh
    try {
      return FoundCheckpoint{path, read_checkpoint(path), refused};
    } catch (const UsageError& why) {
      refused.push_back(why.what());
    }
  }
  if (refused.empty()) return std::nullopt;
  throw UsageError(fmt::format("--checkpoint-dir {}: no checkpoint in it can be read: {}", dir,
                               fmt::join(refused, "; ")));
}

}  // namespace shakedown::training
