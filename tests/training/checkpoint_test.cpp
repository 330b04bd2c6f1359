// Checkpoints as files: what is read is what was written, or is refused; the lock of their folder.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/checkpoint/checkpoints.hpp"
#include "training/checkpoint/folder_lock.hpp"
#include "training/programs/run.hpp"

namespace {

int names_left = -1;  // that may change before the process ends, as if it was killed; -1: all

void change_a_name() {
  if (names_left == 0) _exit(9);
  --names_left;
}

}  // namespace

// In the place of libc's.
extern "C" int rename(const char* from, const char* to) noexcept {
  change_a_name();
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int link(const char* from, const char* to) noexcept {
  change_a_name();
  return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;

using test::TempFolder;

Checkpoint checkpoint_at(long update) {
  Checkpoint checkpoint;
  checkpoint.state.position = {3, update, 12345678901, 1.0 / 3, 7, 0.75};
  checkpoint.state.facts = {{{"--seed", "0"}, {"global batch", "16"}}, {{"--epochs", "4"}}};
  checkpoint.state.first_computing = 1;
  checkpoint.state.ranks.resize(2);
  checkpoint.state.ranks[1].scalars = {0.1F, 512, 1, 41, 2, 30};
  checkpoint.state.ranks[1].scalars.grad_norm = 1.5F;
  checkpoint.state.ranks[1].metrics = {NAN, 5, 9, 10};
  checkpoint.state.ranks[1].input = {2, 3, 4, 5, 1, 6, 7, 8, 9};
  checkpoint.state.bad_images = {3, 1234567};
  checkpoint.tensors = {{"conv1.weight", {2, 2}, {1, 2, 3, 1.0F / 3}},
                        {"bn1.num_batches_tracked", {}, {}, {43}},
                        {"training_state.momentum_buffer.conv1.weight", {2, 2}, {4, 5, 6, 7}}};
  checkpoint.metadata = {{"shakedown", "{}"}};
  return checkpoint;
}

long update_in(const std::string& path) { return read_checkpoint(path).state.position.update; }

void flip_last_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(byte);
}

/// A folder, and its lock as other runs leave it.
struct LockedFolder : TempFolder {
  std::string lock() const { return lock_path(path); }
  void write(const LockOwner& owner, long beat = 0) const {
    std::ofstream(lock()) << text_of(owner, beat);
  }
  bool is_of(const std::string& run_id) const {
    return test::content_of(lock()).find("\"run_id\":\"" + run_id + "\"") != std::string::npos;
  }
  bool can_be_taken() const {
    { const FolderLock lock(path, "b", test::session()); }
    return !fs::exists(lock());
  }
  std::string refusal() const {
    return test::error_of([&] { const FolderLock lock(path, "b", test::session()); });
  }
};

/// A run of another machine, which beats every 0.02 s.
LockOwner elsewhere(const std::string& run_id) {
  LockOwner owner = lock_owner(run_id, 0.02);
  owner.host = "n2";
  owner.machine = "another boot";
  return owner;
}

}  // namespace

TEST_CASE("a checkpoint is read as it was written", "[checkpoint]") {
  const TempFolder folder;
  const Checkpoint written = checkpoint_at(5);
  write_checkpoint(folder.path, kLatest, written);
  const auto found = find_checkpoint(folder.path);
  REQUIRE(found);
  CHECK(found->path == folder.path + "/checkpoint_latest.safetensors");
  CHECK(found->refused.empty());
  const CheckpointState& state = found->checkpoint.state;
  CHECK(text_of(state) == text_of(written.state));
  CHECK(state.position.images == 12345678901);
  CHECK(state.position.seconds == 1.0 / 3);
  CHECK(state.ranks[1].scalars.updates == 41);
  CHECK(state.ranks[1].scalars.finite == 1);
  CHECK(state.ranks[1].scalars.grad_norm == 1.5F);
  CHECK(std::isnan(state.ranks[1].metrics.loss_sum));
  CHECK(state.ranks[1].input.augment_s == 5);
  CHECK(state.ranks[1].input.device_images == 9);
  CHECK(state.bad_images == std::vector<std::size_t>{3, 1234567});
  REQUIRE(found->checkpoint.tensors.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(found->checkpoint.tensors[i].name == written.tensors[i].name);
    CHECK(found->checkpoint.tensors[i].values == written.tensors[i].values);
  }
  CHECK(found->checkpoint.metadata.at("shakedown") == "{}");
}

TEST_CASE("two generations of a checkpoint are kept, the older in reserve", "[checkpoint]") {
  const TempFolder folder;
  const std::string latest = checkpoint_path(folder.path, kLatest);
  const std::string previous = previous_path(folder.path, kLatest);
  CHECK_FALSE(find_checkpoint(folder.path));
  CHECK(checkpoints_in(folder.path).empty());
  for (const long update : {1, 2, 3}) write_checkpoint(folder.path, kLatest, checkpoint_at(update));
  CHECK(folder.files() ==
        Texts{"checkpoint_latest.previous.safetensors", "checkpoint_latest.safetensors"});
  CHECK(update_in(latest) == 3);
  CHECK(update_in(previous) == 2);

  flip_last_byte(latest);
  CHECK_THROWS_WITH(read_checkpoint(latest),
                    ContainsSubstring(latest + ": is not what was written"));
  const auto found = find_checkpoint(folder.path);
  CHECK(found->path == previous);
  REQUIRE(found->refused.size() == 1);
  CHECK(found->refused.at(latest).find(latest) == 0);

  fs::resize_file(latest, fs::file_size(latest) / 2);
  CHECK(find_checkpoint(folder.path)->path == previous);
  fs::remove(latest);  // a crash between two renames
  CHECK(checkpoints_in(folder.path) == Texts{previous});
  CHECK(find_checkpoint(folder.path)->path == previous);
  flip_last_byte(previous);
  CHECK_THROWS_WITH(find_checkpoint(folder.path),
                    ContainsSubstring("no checkpoint in it can be read"));
}

TEST_CASE("a best checkpoint is continued where no latest was due since", "[checkpoint]") {
  const TempFolder folder;
  const std::string latest = checkpoint_path(folder.path, kLatest);
  const std::string best = checkpoint_path(folder.path, kBest);
  const auto written = [&](const std::string& path, int seconds) {
    fs::last_write_time(path, fs::file_time_type(std::chrono::seconds(seconds)));
  };
  write_checkpoint(folder.path, kBest, checkpoint_at(3));
  CHECK(find_checkpoint(folder.path)->path == best);  // there is no other yet
  write_checkpoint(folder.path, kLatest, checkpoint_at(2));
  written(latest, 1);
  written(best, 2);
  CHECK(find_checkpoint(folder.path)->path == best);
  written(latest, 3);  // of a training that began anew
  CHECK(find_checkpoint(folder.path)->path == latest);
  write_checkpoint(folder.path, kLatest, checkpoint_at(4));
  written(previous_path(folder.path, kLatest), 1);
  written(latest, 3);
  CHECK(find_checkpoint(folder.path)->path == latest);
  written(best, 4);  // a copied folder
  CHECK(find_checkpoint(folder.path)->path == latest);
  flip_last_byte(latest);
  const auto found = find_checkpoint(folder.path);
  CHECK(found->path == best);
  CHECK(set_aside(latest) == folder.path + "/checkpoint_latest.refused.safetensors");
}

TEST_CASE("a write that is killed at any moment leaves a sound checkpoint", "[checkpoint]") {
  const bool latest_is_sound = GENERATE(true, false);
  std::vector<int> ends;
  for (int names = 0; names < 6; ++names) {
    const TempFolder folder;
    for (const long update : {1, 2}) write_checkpoint(folder.path, kLatest, checkpoint_at(update));
    if (!latest_is_sound) flip_last_byte(checkpoint_path(folder.path, kLatest));
    Checkpoint next = checkpoint_at(3);
    next.state.run_id = "b";
    const pid_t child = fork();
    if (child == 0) {
      names_left = names;
      write_checkpoint(folder.path, kLatest, next);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    ends.push_back(WEXITSTATUS(status));
    CAPTURE(latest_is_sound, names, ends.back());
    const auto found = find_checkpoint(folder.path);
    REQUIRE(found);
    const long update = found->checkpoint.state.position.update;
    if (ends.back() == 0)
      CHECK(update == 3);
    else
      CHECK((update == 3 || update == (latest_is_sound ? 2 : 1)));
    remove_partials(folder.path);
    for (const std::string& name : folder.files()) CHECK_FALSE(name.ends_with(".partial"));
  }
  CHECK(ends.front() == 9);
  CHECK(ends.back() == 0);
}

TEST_CASE("a checkpoint that was refused becomes nobody's previous one", "[checkpoint]") {
  const TempFolder folder;
  for (const long update : {1, 2}) write_checkpoint(folder.path, kLatest, checkpoint_at(update));
  flip_last_byte(checkpoint_path(folder.path, kLatest));
  REQUIRE(find_checkpoint(folder.path)->refused.size() == 1);
  CHECK(set_aside(checkpoint_path(folder.path, kLatest)) ==
        folder.path + "/checkpoint_latest.refused.safetensors");
  write_checkpoint(folder.path, kLatest, checkpoint_at(3));
  CHECK(update_in(checkpoint_path(folder.path, kLatest)) == 3);
  CHECK(update_in(previous_path(folder.path, kLatest)) == 1);
}

TEST_CASE("weights alone are no checkpoint", "[checkpoint]") {
  const TempFolder folder;
  const std::string path = folder.path + "/w.safetensors";
  write_safetensors({"--save", path}, checkpoint_at(1).tensors);
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("no state of a training"));
}

TEST_CASE("a checkpoint that cannot be written leaves the one before", "[checkpoint]") {
  const TempFolder folder;
  const std::string latest = checkpoint_path(folder.path, kLatest);
  write_checkpoint(folder.path, kLatest, checkpoint_at(1));
  {
    const test::FileLimit full(100);
    CHECK_THROWS_WITH(write_checkpoint(folder.path, kLatest, checkpoint_at(2)),
                      ContainsSubstring(latest) && ContainsSubstring("cannot be written"));
  }
  CHECK(folder.files() == Texts{"checkpoint_latest.safetensors"});
  CHECK(update_in(latest) == 1);
  fs::create_directories(latest + ".partial/kept");  // stops root too
  CHECK_THROWS_WITH(write_checkpoint(folder.path, kLatest, checkpoint_at(2)),
                    ContainsSubstring(latest + ".partial cannot be written: Is a directory"));
  CHECK(update_in(latest) == 1);

  CHECK_THROWS_AS(write_checkpoint("/proc/no", kLatest, checkpoint_at(1)), InconclusiveError);
}

TEST_CASE("of a checkpoint's files what was and was not written is named", "[checkpoint]") {
  const TempFolder folder;
  const std::string best = checkpoint_path(folder.path, kBest);
  fs::create_directories(best + ".partial/kept");
  CheckpointOptions options;
  options.dir = folder.path;
  CheckpointReport report;
  write_files(report, options, {kLatest, kBest}, checkpoint_at(1));
  CHECK(report.files == Texts{kLatest});
  CHECK(report.error == "checkpoint " + best +
                            ".partial cannot be written: Is a directory; there is none before it; "
                            "checkpoint_latest is written");
  Json record = record_of(report);
  CHECK(record["file_bytes"] == report.bytes);
  CHECK(record["error"] == report.error);

  fs::remove_all(best + ".partial");
  report = {};
  write_files(report, options, {kLatest, kBest}, checkpoint_at(1));
  CHECK(report.error.empty());
  CHECK_FALSE(record_of(report).contains("error"));
  fs::create_directories(best + ".partial/kept");
  report = {};
  write_files(report, options, {kBest}, checkpoint_at(2));
  CHECK(report.files.empty());
  CHECK_THAT(report.error, EndsWith("Is a directory; the one before is kept"));
  CHECK_FALSE(record_of(report).contains("file_bytes"));
}

TEST_CASE("another training does not continue", "[checkpoint]") {
  const RunFacts saved{{{"--seed", "0"}, {"global batch", "16"}},
                       {{"--epochs", "4"}, {"--workers", "2"}}};
  CHECK(check_continues(saved, saved, "f").empty());
  RunFacts now = saved;
  now.options["--epochs"] = "8";
  CHECK(check_continues(saved, now, "f") == Texts{"--epochs 8 (was 4)"});
  now.fixed["--seed"] = "1";
  now.fixed["global batch"] = "32";
  CHECK_THROWS_WITH(check_continues(saved, now, "f"),
                    ContainsSubstring("--resume f: ") && ContainsSubstring("--seed 1 (was 0)") &&
                        ContainsSubstring("global batch 32 (was 16)"));
}

TEST_CASE("options of a checkpoint of version 0.2 are compared by the names that they have now",
          "[checkpoint]") {
  const RunFacts now{{}, {{"--lr-warmup", "5.0"}, {"--norm-stats", "first"}}};
  RunFacts saved{
      {},
      {{"--lr-warmup-epochs", "5.0"}, {"--norm-stats", "first"}, {"--broadcast-buffers", "false"}}};
  CHECK(check_continues(saved, now, "f").empty());
  saved.options["--lr-warmup-epochs"] = "0.0";
  saved.options["--broadcast-buffers"] = "true";
  CHECK(
      check_continues(saved, now, "f") ==
      std::vector<std::string>{"--lr-warmup 5.0 (was 0.0)", "--norm-stats first (was broadcast)"});
}

TEST_CASE("--decoder auto is the checkpoint's where a training continues", "[checkpoint]") {
  const TempFolder folder;
  TrainOptions options;
  options.epochs = 2;
  const auto decoder_with = [&](const std::string& dir, const std::string& resume,
                                const std::string& decoder = "auto") {
    options.checkpoints.dir = dir;
    options.checkpoints.resume = resume;
    options.data.decoder = decoder;
    take_saved_decoder(options, test::session());
    return options.data.decoder;
  };
  CHECK(decoder_with(folder.path, "auto") == "auto");
  Checkpoint checkpoint = checkpoint_at(1);
  checkpoint.state.facts.fixed["--decoder"] = "nvjpeg";
  for (int i = 0; i < 2; ++i) write_checkpoint(folder.path, kLatest, checkpoint);
  CHECK(decoder_with(folder.path, "auto") == "nvjpeg");
  const std::string latest = checkpoint_path(folder.path, kLatest);
  fs::resize_file(latest, 20);
  CHECK(decoder_with(folder.path, "auto") == "nvjpeg");
  CHECK(decoder_with("", previous_path(folder.path, kLatest)) == "nvjpeg");
  CHECK(decoder_with("", latest) == "auto");  // refused later
  CHECK(decoder_with(folder.path, "none") == "auto");
  CHECK(decoder_with(folder.path, "auto", "cpu") == "cpu");
}

TEST_CASE("the lock of a process of this machine that has ended is taken over", "[checkpoint]") {
  const LockedFolder folder;
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

TEST_CASE("another machine's lock holds while it shows a heartbeat", "[checkpoint]") {
  const LockedFolder folder;
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
  const LockedFolder folder;
  const test::Variable job("SLURM_JOB_ID", "7");
  LockOwner owner = elsewhere("a");
  owner.heartbeat_s = 0;
  folder.write(owner);
  CHECK_THAT(folder.refusal(), ContainsSubstring("(job 7, host n2"));  // another step of the job
  {
    const test::Variable restarted("SLURM_RESTART_COUNT", "1");
    CHECK(folder.can_be_taken());
    folder.write(owner);
    const test::Variable other("SLURM_JOB_ID", "8");
    CHECK_THAT(folder.refusal(), ContainsSubstring("(job 7, host n2"));
  }
}

TEST_CASE("a training whose folder was taken over writes nothing more there", "[checkpoint]") {
  const LockedFolder folder;
  Checkpoint checkpoint;
  checkpoint.tensors = {{"conv1.weight", {1}, {1}}};
  checkpoint.state.run_id = "a";
  {
    FolderLock lock(folder.path, "a", test::session());
    write_checkpoint(folder.path, kLatest, checkpoint, &lock);
    fs::remove(folder.lock());
    CHECK_NOTHROW(lock.check());
    CHECK(folder.is_of("a"));  // made again
    folder.write(elsewhere("c"));
    checkpoint.state.position.update = 1;
    CHECK_THROWS_WITH(write_checkpoint(folder.path, kLatest, checkpoint, &lock),
                      ContainsSubstring("was taken over by run c (host n2"));
    CHECK(lock.is_lost());
  }
  CHECK(folder.is_of("c"));
  CHECK(read_state(checkpoint_path(folder.path, kLatest)).position.update == 0);
  CHECK_FALSE(fs::exists(previous_path(folder.path, kLatest)));
}

TEST_CASE("a checkpoint in use is not continued elsewhere", "[checkpoint]") {
  const LockedFolder folder;
  const std::string file = checkpoint_path(folder.path, kLatest);
  const FolderLock lock(folder.path, "a", test::session());
  CHECK_THROWS_WITH(check_not_in_use(file, "a", test::session()),
                    ContainsSubstring("--resume " + file + ": is of run a"));
  CHECK_NOTHROW(check_not_in_use(file, "an earlier run", test::session()));
  CHECK_NOTHROW(check_not_in_use("/a/copy.safetensors", "a", test::session()));
}

}  // namespace shakedown::training
