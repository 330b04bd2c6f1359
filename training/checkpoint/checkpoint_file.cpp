#include "training/checkpoint/checkpoint_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "common/error.hpp"
#include "common/output_file.hpp"

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

/// `path` becomes `previous` after `partial` has become `path`: whatever ends this between two
/// steps, one of the two names is a sound file's, also where that of `path` was none. `kept` is a
/// name for meanwhile.
void put_in_place(const std::string& partial, const std::string& path, const std::string& previous,
                  const std::string& kept) {
  bool is_there = link(path.c_str(), kept.c_str()) == 0;
  if (!is_there && errno != ENOENT) {  // a file system without hard links
    rename_file(path, kept);
    is_there = true;
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    const int why = errno;
    std::rename(kept.c_str(), path.c_str());  // of two links to one file: does nothing
    std::remove(kept.c_str());
    not_written(path, why);
  }
  if (is_there) rename_file(kept, previous);
}

/// Of a name that no other run writes to.
std::string partial_of(const std::string& path, const std::string& run_id) {
  return path + (run_id.empty() ? "" : "." + run_id) + ".partial";
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

namespace {

/// Sound or not.
bool is_there(const std::string& path) {
  std::error_code error;  // any other error than not_found must not start the training afresh
  return std::filesystem::status(path, error).type() != std::filesystem::file_type::not_found;
}

/// Whether it was written later, and is further on: of a folder that was copied, or in which
/// another training began, one of the two alone says nothing.
bool is_newer(const std::string& path, const std::string& other) {
  const auto position = [](const std::string& of) {
    const TrainingPosition at = read_state(of).position;
    return std::pair(at.epoch, at.update);
  };
  try {
    return std::filesystem::last_write_time(path) > std::filesystem::last_write_time(other) &&
           position(path) > position(other);
  } catch (const std::exception&) {  // its reader reports it
    return false;
  }
}

}  // namespace

bool has_checkpoint(const std::string& dir, const std::string& name) {
  return is_there(checkpoint_path(dir, name)) || is_there(previous_path(dir, name));
}

std::vector<std::string> checkpoints_in(const std::string& dir) {
  std::vector<std::string> newest_first;
  for (const char* name : {kLatest, kBest})
    for (const std::string& path : {checkpoint_path(dir, name), previous_path(dir, name)})
      if (is_there(path))
        newest_first.insert(std::ranges::find_if(newest_first,
                                                 [&](const std::string& other) {
                                                   return name == kBest && is_newer(path, other);
                                                 }),
                            path);
  return newest_first;
}

void remove_partials(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint") && name.ends_with(".partial"))
      std::filesystem::remove(entry.path(), ignored);
  }
}

std::uint64_t write_checkpoint(const std::string& dir, const std::string& name,
                               const Checkpoint& checkpoint, FolderLock* lock) {
  check_space(dir, bytes_of(checkpoint.tensors), fmt::format("--checkpoint-dir {}: {}", dir, name));
  const std::string path = checkpoint_path(dir, name);
  const std::string previous = previous_path(dir, name);
  const std::string partial = partial_of(path, checkpoint.state.run_id);
  try {
    write_partial(partial, checkpoint);
    if (lock != nullptr) lock->check();
    put_in_place(partial, path, previous, partial_of(previous, checkpoint.state.run_id));
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

CheckpointState read_state(const std::string& path) {
  const Metadata metadata = read_safetensors_metadata(path);
  return state_in(training_state(metadata, path), path);
}

std::optional<FoundCheckpoint> find_checkpoint(const std::string& dir) {
  std::map<std::string, std::string> refused;
  for (const std::string& path : checkpoints_in(dir)) {
    try {
      return FoundCheckpoint{path, read_checkpoint(path), refused};
    } catch (const UsageError& why) {
      refused[path] = why.what();
    }
  }
  if (refused.empty()) return std::nullopt;
  std::vector<std::string> reasons;
  for (const auto& [path, why] : refused) reasons.push_back(why);
  throw UsageError(fmt::format("--checkpoint-dir {}: no checkpoint in it can be read: {}", dir,
                               fmt::join(reasons, "; ")));
}

std::string set_aside(const std::string& path) {
  const std::string aside =
      std::filesystem::path(path).replace_extension(".refused.safetensors").string();
  rename_file(path, aside);
  return aside;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingPosition, epoch, update, images, seconds, skipped_before,
                                   best_top1)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InputTimes, stall_s, open_s, read_s, decode_s, augment_s, copy_s,
                                   device_decode_s, images, device_images)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepScalars, learning_rate, loss_scale, updates, skipped,
                                   since_rescale, grad_norm)

namespace {

nlohmann::json json_of(const RankNumbers& rank) {
  const Metrics& metrics = rank.metrics;
  nlohmann::json json = rank.scalars;
  json.update({{"loss_sum", metrics.loss_sum},
               {"top1", metrics.top1},
               {"top5", metrics.top5},
               {"samples", metrics.samples},
               {"input", rank.input}});
  return json;
}

RankNumbers rank_of(nlohmann::json json) {
  for (const char* key : {"grad_norm", "loss_sum"})  // JSON has only finite numbers
    if (json.at(key).is_null()) json[key] = NAN;
  return {json,
          {json.at("loss_sum"), json.at("top1"), json.at("top5"), json.at("samples")},
          json.at("input")};
}

class Hash {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + at, std::min(sizeof word, bytes - at));
      value_ = (value_ ^ word) * 0x100000001B3U;
      value_ ^= value_ >> 29;  // or the upper bits would reach no lower one
    }
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325U;
};

}  // namespace

std::string text_of(const CheckpointState& state) {
  nlohmann::json json{{"position", state.position},      {"fixed", state.facts.fixed},
                      {"options", state.facts.options},  {"first_computing", state.first_computing},
                      {"bad_images", state.bad_images},  {"run_id", state.run_id},
                      {"ranks", nlohmann::json::array()}};
  for (const RankNumbers& rank : state.ranks) json["ranks"].push_back(json_of(rank));
  return json_text(json);
}

CheckpointState state_of(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    CheckpointState state{json.at("position"),        {json.at("fixed"), json.at("options")},
                          json.at("first_computing"), {},
                          json.at("bad_images"),      json.value("run_id", "")};
    for (const nlohmann::json& rank : json.at("ranks")) state.ranks.push_back(rank_of(rank));
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("its training state is not understood: {}", error.what()));
  }
}

std::string checksum_of(const std::string& state, const std::vector<Tensor>& tensors) {
  Hash hash;
  hash.add(state.data(), state.size());
  for (const Tensor& tensor : tensors) {
    hash.add(tensor.name.data(), tensor.name.size());
    hash.add(tensor.values.data(), tensor.values.size() * sizeof(float));
    for (const std::int64_t integer : tensor.integers) {
      const auto rounded = static_cast<float>(integer);  // as version 0.2 kept and hashed it
      if (rounded < 0x1p63F && static_cast<std::int64_t>(rounded) == integer)
        hash.add(&rounded, sizeof rounded);
      else
        hash.add(&integer, sizeof integer);
    }
  }
  return hash.text();
}

}  // namespace shakedown::training
