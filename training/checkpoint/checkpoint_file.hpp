// Checkpoints in a folder: each name in two generations, written whole or not at all, and verified
// when they are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/checkpoint/checkpoint.hpp"
#include "training/checkpoint/folder_lock.hpp"

namespace shakedown::training {

inline constexpr const char* kLatest = "checkpoint_latest";
inline constexpr const char* kBest = "checkpoint_best";

/// DIR/NAME.safetensors.
std::string checkpoint_path(const std::string& dir, const std::string& name);
/// DIR/NAME.previous.safetensors, which it was before the last one was written.
std::string previous_path(const std::string& dir, const std::string& name);

/// Whether a file of this name, of either generation, is there, sound or not.
bool has_checkpoint(const std::string& dir, const std::string& name = kLatest);

/// Makes the folder. Throws UsageError where nothing can be written there.
void check_writable_folder(const std::string& dir);
/// Removes what runs that were killed have left over of files that they wrote. The folder's lock is
/// held.
void remove_partials(const std::string& dir);
/// Throws InconclusiveError where the file system has fewer bytes, or no inode, free. `what` needs
/// them.
void check_space(const std::string& dir, std::uint64_t bytes,
                 const std::string& what = "a checkpoint");

/// Writes a file next to the one of this name, on the disk before it takes its place; that one
/// becomes the previous one. At no moment is none of the two names a sound file's. Returns its
/// bytes. Throws InconclusiveError naming the file: then the one before is kept. `lock`: the
/// folder's, checked before the file takes its place.
std::uint64_t write_checkpoint(const std::string& dir, const std::string& name,
                               const Checkpoint& checkpoint, FolderLock* lock = nullptr);

/// Throws UsageError naming the file and what is wrong with it: it is no checkpoint, or not what
/// was written.
Checkpoint read_checkpoint(const std::string& path);

/// The state in a checkpoint, without reading its tensors; throws as read_checkpoint.
CheckpointState read_state(const std::string& path);

struct FoundCheckpoint {
  std::string path;
  Checkpoint checkpoint;
  std::vector<std::string> refused;  // what is wrong with newer ones
};
/// The newest sound checkpoint_latest; none where there is no such file. Throws UsageError where
/// there are some and none is sound.
std::optional<FoundCheckpoint> find_checkpoint(const std::string& dir);
/// Renames a checkpoint_latest that was refused, so that it becomes nobody's previous one, and
/// returns its new path.
std::string set_aside(const std::string& dir);

}  // namespace shakedown::training
