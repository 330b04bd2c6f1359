// The lock of a folder of checkpoints: who holds it, who takes it over, and who is refused.
#include "training/checkpoint/folder_lock.hpp"
#include "common/error.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/checkpoint/checkpoint_file.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;

/// A folder of a test, and its lock as other runs leave it.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("lock_test." + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string lock() const { return lock_path(path()); }
  void write(const LockOwner& owner, long beat = 0) const {
    std::ofstream(lock()) << text_of(owner, beat);
  }
  std::string text() const {
    std::string line;
    std::getline(std::ifstream(lock()), line);
    return line;
  }
  bool is_of(const std::string& run_id) const {
    return text().find("\"run_id\":\"" + run_id + "\"") != std::string::npos;
  }
  bool can_be_taken() const {
    { const FolderLock lock(path(), "b", test::session()); }
    return !fs::exists(lock());
  }
  std::string refusal() const {
    try {
      const FolderLock lock(path(), "b", test::session());
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

 private:
  fs::path path_;
};

/// A run of another machine, which beats every 0.02 s.
LockOwner elsewhere(const std::string& run_id) {
  LockOwner owner = lock_owner(run_id, 0.02);
  owner.host = "n2";
  owner.machine = "another boot";
  return owner;
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("one training at a time holds a folder", "[checkpoint]") {
  const Folder folder;
  {
    FolderLock lock(folder.path(), "a", test::session());
    CHECK(folder.is_of("a"));
    CHECK_THAT(folder.refusal(),
               ContainsSubstring(folder.lock() + " is held by run a (") &&
                   ContainsSubstring("pid " + std::to_string(getpid()) + "): its process runs"));
    CHECK(folder.is_of("a"));
    CHECK_NOTHROW(lock.check());
    CHECK_FALSE(lock.is_lost());
  }
  CHECK_FALSE(fs::exists(folder.lock()));
  CHECK(folder.can_be_taken());
}

TEST_CASE("the lock of a process of this machine that has ended is taken over", "[checkpoint]") {
  const Folder folder;
  const auto owner_that_ends = [&] {
    const pid_t child = fork();
    if (child == 0) {
      folder.write(lock_owner("a", 10));
      _exit(0);
    }
    siginfo_t ended{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
    CHECK(folder.is_of("a"));
    return child;
  };
  SECTION("its parent has not waited for it yet") {
    const pid_t child = owner_that_ends();
    CHECK(folder.can_be_taken());
    waitpid(child, nullptr, 0);
  }
  SECTION("its pid is nobody's") {
    waitpid(owner_that_ends(), nullptr, 0);
    CHECK(folder.can_be_taken());
  }
  SECTION("its pid is another process's now") {
    LockOwner owner = lock_owner("a", 10);
    owner.started = "1";
    folder.write(owner);
    CHECK(folder.can_be_taken());
  }
}

TEST_CASE("the lock of another machine is its owner's while that shows a heartbeat",
          "[checkpoint]") {
  const Folder folder;
  LockOwner owner = elsewhere("a");
  folder.write(owner);
  CHECK(folder.can_be_taken());  // it had none

  folder.write(owner);
  {
    const std::jthread beats([&](const std::stop_token& stop) {
      for (long beat = 1; !stop.stop_requested(); ++beat) {
        const std::string next = folder.lock() + ".next";
        std::ofstream(next) << text_of(owner, beat);
        fs::rename(next, folder.lock());
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
    CHECK_THAT(folder.refusal(), ContainsSubstring("run a (host n2") &&
                                     EndsWith("its heartbeat goes on; each training "
                                              "needs a folder of its own"));
  }
  owner.heartbeat_s = 0;  // it could not start a thread
  folder.write(owner);
  CHECK_THAT(folder.refusal(), ContainsSubstring("if it has ended, remove " + folder.lock()));
}

TEST_CASE("a job that Slurm has started again has its lock back", "[checkpoint]") {
  const Folder folder;
  const Variable job("SLURM_JOB_ID", "7");
  LockOwner owner = elsewhere("a");
  owner.heartbeat_s = 0;
  folder.write(owner);
  CHECK_THAT(folder.refusal(), ContainsSubstring("(job 7, host n2"));  // another step of the job
  {
    const Variable restarted("SLURM_RESTART_COUNT", "1");
    CHECK(folder.can_be_taken());
    folder.write(owner);
    const Variable other("SLURM_JOB_ID", "8");
    CHECK_THAT(folder.refusal(), ContainsSubstring("(job 7, host n2"));
  }
}

TEST_CASE("a training whose folder was taken over writes nothing more there", "[checkpoint]") {
  const Folder folder;
  Checkpoint checkpoint;
  checkpoint.tensors = {{"conv1.weight", {1}, {1}}};
  checkpoint.state.run_id = "a";
  {
    FolderLock lock(folder.path(), "a", test::session());
    write_checkpoint(folder.path(), kLatest, checkpoint, &lock);
    fs::remove(folder.lock());
    CHECK_NOTHROW(lock.check());
    CHECK(folder.is_of("a"));  // made again
    folder.write(elsewhere("c"));
    checkpoint.state.position.update = 1;
    CHECK_THROWS_WITH(write_checkpoint(folder.path(), kLatest, checkpoint, &lock),
                      ContainsSubstring("was taken over by run c (host n2"));
    CHECK(lock.is_lost());
  }
  CHECK(folder.is_of("c"));
  CHECK(read_state(checkpoint_path(folder.path(), kLatest)).position.update == 0);
  CHECK_FALSE(fs::exists(previous_path(folder.path(), kLatest)));
}

TEST_CASE("a checkpoint of a run that holds its folder is not continued elsewhere",
          "[checkpoint]") {
  const Folder folder;
  const std::string file = checkpoint_path(folder.path(), kLatest);
  const FolderLock lock(folder.path(), "a", test::session());
  CHECK_THROWS_WITH(check_not_in_use(file, "a", test::session()),
                    ContainsSubstring("--resume " + file + ": is of run a"));
  CHECK_NOTHROW(check_not_in_use(file, "an earlier run", test::session()));
  CHECK_NOTHROW(check_not_in_use("/a/copy.safetensors", "a", test::session()));
}

}  // namespace shakedown::training
