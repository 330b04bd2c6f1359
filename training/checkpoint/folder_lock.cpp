#include "training/checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>

#include "common/error.hpp"
#include "common/host.hpp"
#include "common/program.hpp"
#include "common/record.hpp"

namespace shakedown::training {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LockOwner, run_id, host, pid, machine, started, job, restart,
                                   heartbeat_s)

namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kHeartbeat_s = 10;
constexpr int kMissedBeats = 6;  // then the owner has ended
constexpr int kLooksPerBeat = 5;
constexpr int kTries = 10;  // of a lock that others give back, or take over, meanwhile
/// Of two runs that take over at the same moment, the file of the later one stays: both see it
/// then.
constexpr std::chrono::milliseconds kSettle{500};

struct Content {
  std::string text;
  int why = 0;  // errno where it could not be read
};
/// Of a small file. Opening it makes a network file system look at the server.
Content content_of(const std::string& path) {
  Content content;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {"", errno};
  std::array<char, 4096> part{};
  ssize_t bytes = 0;
  while ((bytes = read(file, part.data(), part.size())) > 0)
    content.text.append(part.data(), static_cast<std::size_t>(bytes));
  if (bytes < 0) content.why = errno;
  close(file);
  return content;
}

/// Closes the file. 0, or the system's reason.
int write_to(int file, const std::string& text) {
  const auto bytes = static_cast<ssize_t>(text.size());
  const ssize_t wrote = pwrite(file, text.data(), text.size(), 0);
  int why = wrote == bytes ? 0 : wrote < 0 ? errno : ENOSPC;
  if (why == 0 && ftruncate(file, bytes) != 0) why = errno;
  if (close(file) != 0 && why == 0) why = errno;  // when a network file system writes
  return why;
}

[[noreturn]] void refuse(const std::string& path, const char* what, int why) {
  throw UsageError(
      fmt::format("--checkpoint-dir: {} cannot be {}: {}", path, what, std::strerror(why)));
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string this_machine() {
  std::error_code none;
  const std::string boot = boot_id();
  const std::string pids = std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
  return boot.empty() || pids.empty() ? "" : boot + " " + pids;
}

struct ProcessStatus {
  std::string state;  // empty where it cannot be read
  std::string started;
};
ProcessStatus status_of(int pid) {
  const std::string text = content_of(fmt::format("/proc/{}/stat", pid)).text;
  const auto name_end = text.rfind(')');  // of a name that may contain anything
  if (name_end == std::string::npos) return {};
  constexpr int kAfterState = 19;  // is the start: proc(5)
  ProcessStatus status;
  std::istringstream fields(text.substr(name_end + 1));
  fields >> status.state;
  for (int i = 0; i < kAfterState; ++i) fields >> status.started;
  return status;
}

/// Of a process of this machine.
bool runs(const LockOwner& owner) {
  if (kill(owner.pid, 0) != 0 && errno == ESRCH) return false;
  const auto [state, started] = status_of(owner.pid);
  return state.empty() || (started == owner.started && state != "Z" && state != "X");
}

std::optional<LockOwner> owner_in(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<LockOwner>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string name_of(const std::optional<LockOwner>& owner) {
  if (!owner) return "a run that it does not name";
  return fmt::format("run {} ({}host {}, pid {})", owner->run_id,
                     owner->job.empty() ? "" : "job " + owner->job + ", ", owner->host, owner->pid);
}

/// What is known of the run that holds a lock.
struct Life {
  enum State { lives, ended, gave_back } state;
  std::string why = {};
};

/// Of a run on another machine.
Life watch(const std::string& path, const std::string& text, double beat_s,
           const MpiSession& session) {
  say(session, fmt::format("{} is of {}: waiting for its heartbeat, at most {:g} s", path,
                           name_of(owner_in(text)), kMissedBeats * beat_s));
  std::vector<int> others(static_cast<std::size_t>(session.world_size()) - 1);
  std::iota(others.begin(), others.end(), 1);
  // Looks count, not seconds: a file server that hangs holds up the owner too.
  for (int look = 0; look < kMissedBeats * kLooksPerBeat; ++look) {
    std::this_thread::sleep_for(Seconds(beat_s / kLooksPerBeat));
    session.progress(others);
    const auto [now, why] = content_of(path);
    if (why == ENOENT) return {Life::gave_back};
    if (why != 0) refuse(path, "read", why);
    if (now != text) return {Life::lives, "its heartbeat goes on"};
  }
  return {Life::ended, fmt::format("it had no heartbeat for {:g} s", kMissedBeats * beat_s)};
}

Life life_of(const std::string& path, const std::string& text, const MpiSession& session) {
  const auto owner = owner_in(text);
  if (!owner) return watch(path, text, kHeartbeat_s, session);
  const LockOwner self = lock_owner("", 0);
  if (!owner->machine.empty() && owner->machine == self.machine)
    return runs(*owner) ? Life{Life::lives, "its process runs"}
                        : Life{Life::ended, "its process has ended"};
  if (!owner->job.empty() && owner->job == self.job && owner->restart < self.restart)
    return {Life::ended, "Slurm has started its job again"};
  if (owner->heartbeat_s <= 0)
    return {Life::lives, fmt::format("it has no heartbeat; if it has ended, remove {}", path)};
  return watch(path, text, std::min(owner->heartbeat_s, 60.0), session);
}

}  // namespace

LockOwner lock_owner(const std::string& run_id, double heartbeat_s) {
  const std::string job = environment("SLURM_JOB_ID");
  const std::string cluster = environment("SLURM_CLUSTER_NAME");
  return {run_id,
          host_name(),
          getpid(),
          this_machine(),
          status_of(getpid()).started,
          job.empty() || cluster.empty() ? job : job + " of cluster " + cluster,
          std::atoi(environment("SLURM_RESTART_COUNT").c_str()),
          heartbeat_s};
}

std::string text_of(const LockOwner& owner, long beat) {
  nlohmann::json json = owner;
  json["beat"] = fmt::format("{:010}", beat);  // as long as the one before
  return json_text(json) + "\n";
}

std::string lock_path(const std::string& dir) { return dir + "/checkpoint.lock"; }

FolderLock::FolderLock(const std::string& dir, const std::string& run_id, const MpiSession& session)
    : path_(lock_path(dir)), own_(lock_owner(run_id, kHeartbeat_s)) {
  if (!session.is_root()) {
    session.wait_idle();
    return;
  }
  take(session);
  session.barrier();
  try {
    beating_ = std::jthread([this](const std::stop_token& stop) {
      std::unique_lock guard(mutex_);
      const auto ended = [&] { return stop.stop_requested(); };
      while (!ends_.wait_for(guard, stop, Seconds(kHeartbeat_s), ended)) beat();
    });
  } catch (const std::system_error&) {  // no thread can be started
    own_.heartbeat_s = 0;
    beat();
  }
  held_ = true;
}

FolderLock::~FolderLock() {
  beating_ = {};
  if (!held_) return;
  const auto owner = owner_in(content_of(path_).text);
  if (owner && owner->run_id == own_.run_id) std::remove(path_.c_str());
}

void FolderLock::take(const MpiSession& session) {
  for (int tries = 0;; ++tries) {
    const int why = create();
    if (why == 0) return;
    if (why != EEXIST || tries == kTries) refuse(path_, "written", why);
    const auto [text, unread] = content_of(path_);
    if (unread == ENOENT) continue;  // given back meanwhile
    if (unread != 0) refuse(path_, "read", unread);
    const Life life = life_of(path_, text, session);
    const Content now = content_of(path_);
    if (life.state == Life::lives)
      throw UsageError(
          fmt::format("--checkpoint-dir: {} is held by {}: {}; each training needs a "
                      "folder of its own",
                      path_, name_of(owner_in(now.text)), life.why));
    if (life.state == Life::gave_back || now.text != text) continue;
    say(session,
        fmt::format("takes {} over from {}: {}", path_, name_of(owner_in(text)), life.why));
    replace();
    std::this_thread::sleep_for(kSettle);
    if (other().empty()) return;
    lost_ = false;  // to another run that takes over: it was never held
  }
}

/// 0, or the system's reason, EEXIST where there is one. O_EXCL holds on NFS too.
int FolderLock::create() {
  const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return errno;
  const int why = write_to(file, text_of(own_, beats_));
  if (why != 0) std::remove(path_.c_str());
  return why;
}

/// Puts this run's lock in the place of the one that is there.
void FolderLock::replace() {
  const std::string mine = path_ + "." + own_.run_id + ".partial";
  const int file = open(mine.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  int why = file < 0 ? errno : write_to(file, text_of(own_, beats_));
  if (why == 0 && std::rename(mine.c_str(), path_.c_str()) != 0) why = errno;
  if (why == 0 || why == ENOENT) return;  // removed: another has the lock by now
  std::remove(mine.c_str());
  refuse(path_, "written", why);
}

/// The run that holds the lock, where it is another. One that somebody has removed is made again.
std::string FolderLock::other() {
  const auto [text, why] = content_of(path_);
  if (why == ENOENT) create();
  const auto owner = owner_in(text);
  if (!owner || owner->run_id == own_.run_id) return "";
  lost_ = true;
  return name_of(owner);
}

void FolderLock::check() {
  const std::lock_guard guard(mutex_);
  if (const std::string who = other(); !who.empty())
    throw InconclusiveError(fmt::format("{} was taken over by {}", path_, who));
}

/// The next one makes up for one that fails.
void FolderLock::beat() {
  if (lost_ || !other().empty()) return;
  const int file = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (file >= 0) write_to(file, text_of(own_, ++beats_));
}

void check_not_in_use(const std::string& checkpoint, const std::string& run_id,
                      const MpiSession& session) {
  const std::string folder = std::filesystem::path(checkpoint).parent_path().string();
  const std::string path = lock_path(folder.empty() ? "." : folder);
  const auto [text, why] = content_of(path);
  const auto owner = owner_in(text);
  if (!owner || owner->run_id != run_id || run_id.empty()) return;
  if (const Life life = life_of(path, text, session); life.state == Life::lives)
    throw UsageError(
        fmt::format("--resume {}: is of {}: {}; a copy of it in another folder starts "
                    "a second training from it",
                    checkpoint, name_of(owner), life.why));
}

}  // namespace shakedown::training
