#include "training/checkpoint/checkpoints.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>

#include "common/error.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "training/checkpoint/checkpoint_file.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, CheckpointOptions& values) {
  options.heading("Checkpoint");
  options
      .add(
          "--checkpoint-dir", values.dir,
          "write checkpoint_latest.safetensors and, after the best validation (of the weights, not "
          "of their --ema average), checkpoint_best.safetensors to this folder, and keep the one "
          "before of each; TERM, INT, HUP, USR1 and USR2 to any rank, and a file DIR/STOP, then "
          "write one and end the run with 5; a file DIR/SAVE writes one; one training at a time "
          "holds "
          "DIR/checkpoint.lock; after 5 checkpoints in a row that cannot be written the run ends "
          "with "
          "3")
      .only_with({"--epochs"})
      .metavar("DIR")
      .first();
  options
      .add("--checkpoint-every,--checkpoint-every-epochs", values.every_epochs,
           "epochs between two checkpoints (the last epoch always has one); 20min: minutes, within "
           "an epoch too; 1,20min: both")
      .at_least(1)
      .only_with({"--checkpoint-dir"})
      .unit("min", "--checkpoint-minutes")
      .metavar("EPOCHS|Nmin");
  options.add("--checkpoint-minutes", values.minutes, "minutes of --checkpoint-every")
      .at_least(0)
      .only_with({"--checkpoint-dir"})
      .hidden();
  options
      .add("--resume", values.resume,
           "auto: continue from the newest checkpoint in --checkpoint-dir, if there is one; none: "
           "start from the beginning; else the checkpoint to continue from")
      .only_with({"--epochs"})
      .metavar("auto|none|FILE");
  options
      .add("--signal-lead", values.signal_lead_s,
           "seconds from the signal to the end of the job (sbatch --signal): warn if a checkpoint "
           "takes longer; 0: not known")
      .at_least(0)
      .only_with({"--checkpoint-dir"})
      .metavar("SECONDS");
  options.check([&] {  // else each start of a job would begin anew
    if (values.dir.empty() && values.resume == "auto" && options.given("--resume"))
      throw UsageError("--resume auto: only with --checkpoint-dir");
  });
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostFailures = 5;  // in a row: then the training ends

/// Steps that the hosts of ranks may be apart: each enqueues up to two ahead of its device.
int slack_of(Engine& engine) {
  constexpr int kAhead = 2;
  const bool waits = engine.step.plan().ranks_agree;
  return kAhead + (waits ? 0 : engine.settings().strategy.staleness);
}

std::optional<FoundCheckpoint> find(const CheckpointOptions& options) {
  if (options.resume == "none") return std::nullopt;
  if (options.resume != "auto")
    return FoundCheckpoint{
        options.resume, named_by("--resume", [&] { return read_checkpoint(options.resume); }), {}};
  if (options.dir.empty()) return std::nullopt;
  return find_checkpoint(options.dir);
}

/// As it was written; kNoTop1: there is none that is sound.
double best_in(const std::string& dir) {
  try {
    return read_state(checkpoint_path(dir, kBest)).position.best_top1;
  } catch (const Error&) {
    return kNoTop1;
  }
}

CheckpointReport write(const Snapshot& snapshot, const CheckpointOptions& options,
                       const std::vector<std::string>& names, CheckpointReport report,
                       Checkpoint checkpoint) {
  const auto start = Clock::now();
  try {
    checkpoint.tensors = snapshot.tensors();
    write_files(report, options, names, checkpoint);
  } catch (const std::exception& error) {
    report.error = fmt::format("checkpoint in {}: {}", options.dir, error.what());
  }
  report.write_s = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace

Json record_of(const CheckpointReport& written) {
  Json fields{{"epoch", written.position.epoch},   {"update", written.position.update},
              {"images", written.position.images}, {"best", written.best},
              {"stall_ms", written.stall_ms},      {"write_s", written.write_s}};
  if (!written.files.empty()) fields["file_bytes"] = written.bytes;
  if (!written.error.empty()) fields["error"] = written.error;
  return fields;
}

void write_files(CheckpointReport& report, const CheckpointOptions& options,
                 const std::vector<std::string>& names, const Checkpoint& checkpoint) {
  for (const std::string& name : names) {
    try {
      report.bytes = write_checkpoint(options.dir, name, checkpoint, options.lock.get());
      report.files.push_back(name);
    } catch (const Error& error) {
      const char* before =
          has_checkpoint(options.dir, name) ? "the one before is kept" : "there is none before it";
      report.error = fmt::format("{}; {}", error.what(), before);
      if (!report.files.empty())
        report.error += fmt::format("; {} is written", fmt::join(report.files, ", "));
      return;
    }
  }
}

void lock_folder(CheckpointOptions& options, const std::string& run_id, const MpiSession& session) {
  if (options.resume != "auto" && options.resume != "none") {
    if (session.is_root()) {
      const CheckpointState state =
          named_by("--resume", [&] { return read_state(options.resume); });
      check_not_in_use(options.resume, state.run_id, session);
    }
    session.is_root() ? session.barrier() : session.wait_idle();
  }
  if (options.dir.empty()) return;
  if (session.is_root())
    check_writable({"--checkpoint-dir", checkpoint_path(options.dir, kLatest)});
  options.lock = std::make_shared<FolderLock>(options.dir, run_id, session);
  if (session.is_root()) remove_partials(options.dir);
}

bool continues(const CheckpointOptions& options) {
  if (options.resume != "auto") return options.resume != "none";
  return !options.dir.empty() && !checkpoints_in(options.dir).empty();
}

std::string saved_fact(const CheckpointOptions& options, const std::string& name) {
  if (!continues(options)) return "";
  const auto files = options.resume == "auto" ? checkpoints_in(options.dir)
                                              : std::vector<std::string>{options.resume};
  for (const std::string& file : files) {
    try {
      const RunFacts facts = read_state(file).facts;
      if (const auto found = facts.fixed.find(name); found != facts.fixed.end())
        return found->second;
    } catch (const Error&) {  // resume() reports it
    }
  }
  return "";
}

Checkpoints::Checkpoints(CheckpointSettings settings, Engine& engine, const MpiSession& session)
    : settings_(std::move(settings)), engine_(engine), session_(session) {
  if (!active()) return;
  const CheckpointOptions& options = settings_.options;
  snapshot_.emplace(engine, session);
  if (session.is_root()) {
    check_writable({"--checkpoint-dir", checkpoint_path(options.dir, kLatest)});
    // Of two generations that are there already, one goes before the end.
    const bool adds =
        settings_.save_bytes > 0 && !std::filesystem::exists(previous_path(options.dir, kLatest));
    check_space(options.dir, snapshot_->bytes() + (adds ? settings_.save_bytes : 0),
                fmt::format("--checkpoint-dir {}: a checkpoint{}", options.dir,
                            adds ? " next to the file of --save" : ""));
  }
  requests_.emplace(session, options.dir, options.minutes, slack_of(engine));
}

TrainingPosition Checkpoints::resume() {
  FoundCheckpoint found;
  std::string text;
  if (session_.is_root())
    if (auto newest = find(settings_.options)) {
      found = *std::move(newest);
      text = text_of(found.checkpoint.state);
    }
  text = session_.all_gather(text).front();
  if (text.empty()) {
    if (active())
      say(session_, settings_.options.resume == "none"
                        ? "--resume none: training starts from the beginning"
                        : fmt::format("no checkpoint in {}: training starts from the beginning",
                                      settings_.options.dir));
    return {};
  }
  for (const auto& [path, why] : found.refused)
    std::fprintf(stderr, "warning: %s; the one before is used, this one is %s now\n", why.c_str(),
                 set_aside(path).c_str());
  const CheckpointState state = state_of(text);
  const auto changes = check_continues(state.facts, settings_.facts, found.path);
  if (settings_.bad_images != nullptr) settings_.bad_images->restore(state.bad_images);
  TrainingPosition at = state.position;
  if (session_.is_root()) best_top1_ = std::min(at.best_top1, best_in(settings_.options.dir));
  at.input = restore(engine_, session_, state, found.checkpoint.tensors, found.path);
  say_continues(found.path, state, changes);
  return at;
}

void Checkpoints::say_continues(const std::string& file, const CheckpointState& state,
                                const std::vector<std::string>& changes) const {
  const TrainingPosition& at = state.position;
  say(session_, fmt::format("continues {}: epoch {} after {} updates, {} images so far", file,
                            at.epoch, at.update, at.images));
  if (!changes.empty())
    say(session_, fmt::format("changed since then: {}", fmt::join(changes, ", ")));
  const int shards = engine_.settings().strategy.invariant;
  if (const auto ranks = static_cast<int>(state.ranks.size()); ranks != session_.world_size())
    say(session_, fmt::format("ranks: {} (was {}): the same images in the same order, {}",
                              session_.world_size(), ranks,
                              shards > 0 ? fmt::format("bit for bit by --invariant {}", shards)
                                         : "but not bit for bit"));
  if (!engine_.step.plan().ranks_agree && session_.world_size() > 1)
    say(session_, fmt::format("not bit for bit: ranks of {} have weights of their own",
                              engine_.step.plan().strategy));
}

bool Checkpoints::stop_after_update(const TrainingPosition& at) {
  if (!active()) return false;
  collect();
  return obey(requests_->after_step(), at);
}

bool Checkpoints::stops_validation() {
  if (!active()) return false;
  const Request request = requests_->after_step();
  if (request == Request::save) save_after_validation_ = true;
  return request == Request::stop;
}

bool Checkpoints::stop_between(const TrainingPosition& at) {
  return active() && obey(requests_->now(), at);
}

bool Checkpoints::obey(Request request, const TrainingPosition& at) {
  if (request != Request::none) save(at, true, false);
  if (request == Request::stop) note_stop();
  return stopped_;
}

bool Checkpoints::stop_after_epoch(TrainingPosition at, double top1, bool last) {
  if (!active()) return false;
  if (top1 != kNoTop1) wait_for_write();  // the best one may not have been written
  collect();
  const bool best = top1 > session_.all_gather(best_top1_).front();
  const Request request = requests_->now();
  const bool due = (at.epoch - 1) % settings_.options.every_epochs == 0;
  const bool latest = due || last || request != Request::none || save_after_validation_;
  save_after_validation_ = false;
  at.best_top1 = top1;
  if (latest || best) save(at, latest, best);
  if (request == Request::stop && !last) note_stop();  // else nothing is left to be done
  return stopped_;
}

void Checkpoints::note_stop() {
  stopped_ = true;
  say(session_, "stops: " + requests_->reason());
}

void Checkpoints::save(const TrainingPosition& at, bool latest, bool best) {
  wait_for_write();  // it reads the snapshot
  collect();
  CheckpointReport report{at, best, snapshot_->take(at.input)};
  requests_->saved();
  for (const RankNumbers& rank : snapshot_->state().ranks)
    if (!std::isfinite(rank.metrics.loss_sum))
      throw FailError(
          fmt::format("the loss is not finite in epoch {}: no checkpoint is written; a "
                      "lower --learning-rate, or another --precision",
                      at.epoch));
  std::set<std::size_t> bad_images;
  if (settings_.bad_images != nullptr) bad_images = over_ranks(*settings_.bad_images, session_);
  if (!session_.is_root()) return;
  std::vector<std::string> names;
  if (latest) names.push_back(kLatest);
  if (best) names.push_back(kBest);
  Checkpoint checkpoint{snapshot_->state(), {}, settings_.metadata};
  checkpoint.state.position = at;
  if (best) before_best_ = std::exchange(best_top1_, at.best_top1);
  checkpoint.state.position.best_top1 = best_top1_;
  checkpoint.state.facts = settings_.facts;
  checkpoint.state.bad_images.assign(bad_images.begin(), bad_images.end());
  if (settings_.options.lock) checkpoint.state.run_id = settings_.options.lock->run_id();
  const auto write_names = [this, names, report, checkpoint] {
    return write(*snapshot_, settings_.options, names, report, checkpoint);
  };
  try {
    writing_ = std::async(std::launch::async, write_names);
  } catch (const std::system_error&) {  // no thread can be started: training waits
    std::promise<CheckpointReport> written;
    written.set_value(write_names());
    writing_ = written.get_future();
  }
}

/// Collective: however long a file system takes, no rank gives the others up.
void Checkpoints::wait_for_write() {
  if (!session_.is_root()) return session_.wait_idle();
  std::vector<int> others(static_cast<std::size_t>(session_.world_size()) - 1);
  std::iota(others.begin(), others.end(), 1);
  while (writing_.valid() &&
         writing_.wait_for(std::chrono::seconds(1)) != std::future_status::ready)
    session_.progress(others);
  session_.barrier();
}

/// The writes that are done by now.
void Checkpoints::collect() {
  const FolderLock* lock = settings_.options.lock.get();
  if (lock != nullptr && lock->is_lost()) give_up("another training has taken the folder over");
  if (!writing_.valid() || writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return;
  written_.push_back(writing_.get());
  const CheckpointReport& report = written_.back();
  if (!report.error.empty()) {
    std::fprintf(stderr, "error: %s\n", report.error.c_str());
    if (report.best && std::ranges::count(report.files, kBest) == 0) best_top1_ = before_best_;
    if (++failures_ == kMostFailures)
      give_up(fmt::format("{} checkpoints in a row could not be written", kMostFailures));
    return;
  }
  failures_ = 0;
  const double lead = settings_.options.signal_lead_s;
  if (lead > 0 && seconds_to_stop(report) > lead)
    std::fprintf(stderr,
                 "warning: --signal-lead %g: from a signal to its checkpoint it takes %.0f s\n",
                 lead, std::ceil(seconds_to_stop(report)));
}

void Checkpoints::give_up(const std::string& why) {
  gave_up_ = true;
  requests_->stop(why);
}

/// From a signal to the end of the checkpoint that it brings.
double Checkpoints::seconds_to_stop(const CheckpointReport& report) const {
  const TrainingPosition& at = report.position;
  const double update = at.update > 0 ? at.seconds / static_cast<double>(at.update) : 0;
  return requests_->longest_gap_s() + requests_->lag() * update + report.stall_ms * 1e-3 +
         report.write_s;
}

std::vector<CheckpointReport> Checkpoints::reports() {
  collect();
  const std::size_t from = std::exchange(reported_, written_.size());
  return {written_.begin() + static_cast<std::ptrdiff_t>(from), written_.end()};
}

ExitCode Checkpoints::finish() {
  if (active()) wait_for_write();
  collect();
  const bool failed_here = std::any_of(written_.begin(), written_.end(),
                                       [](const auto& report) { return !report.error.empty(); });
  const bool lost_here = !written_.empty() && !written_.back().error.empty();
  const bool failed = session_.all_gather(failed_here ? 1.0 : 0.0).front() > 0;
  const bool lost = session_.all_gather(lost_here || gave_up_ ? 1.0 : 0.0).front() > 0;
  if (!written_.empty()) say(session_, summary());
  if (stopped_ && !lost) return ExitCode::stopped;  // an earlier failure is made up for
  return failed ? ExitCode::inconclusive : ExitCode::pass;
}

std::string Checkpoints::summary() const {
  double stall_ms = 0;
  double write_s = 0;
  double to_stop_s = requests_->seconds_since_notice();
  std::uint64_t bytes = 0;
  std::size_t there = 0;
  std::size_t failed = 0;
  for (const CheckpointReport& report : written_) {
    there += report.files.empty() ? 0 : 1;
    failed += report.error.empty() ? 0 : 1;
    bytes = std::max(bytes, report.bytes);
    stall_ms = std::max(stall_ms, report.stall_ms);
    write_s = std::max(write_s, report.write_s);
    to_stop_s = std::max(to_stop_s, seconds_to_stop(report));
  }
  // Young 1974, Daly 2006: sqrt(2 x cost x time between failures)
  constexpr double kDay_s = 86400;
  return fmt::format(
      "checkpoints: {} in {}, {} each; stalled training for {:.1f} ms, written in {:.2f} s; "
      "shortest sensible interval {:.0f} s (Young/Daly, one failure per day); from a signal to "
      "the end {:.1f} s{}",
      there, settings_.options.dir, readable_bytes(static_cast<double>(bytes)), stall_ms, write_s,
      std::sqrt(2 * stall_ms * 1e-3 * kDay_s), to_stop_s,
      failed == 0 ? "" : fmt::format("; {} could not be written, or not wholly", failed));
}

namespace {

constexpr std::chrono::seconds kLookEvery{10};  // a network file system is spared

}  // namespace

Requests::Requests(const MpiSession& session, const std::string& dir, double minutes, int slack)
    : session_(session), dir_(dir), period_(60 * minutes), agreement_(session, slack) {}

int Requests::noticed() {
  const auto now = Clock::now();
  if (noticed_ != Clock::time_point{})
    longest_gap_ = std::max<std::chrono::duration<double>>(longest_gap_, now - noticed_);
  noticed_ = now;
  if (stop_.empty() && !signals_.received().empty())
    stop_ = fmt::format("{} to rank {}", signals_.received(), session_.rank());
  if (session_.is_root() && now - looked_ >= kLookEvery) {
    looked_ = now;
    look_at_files();
  }
  if (session_.is_root() && period_.count() > 0 && now - saved_ >= period_) {
    saved_ = now;
    save_ = true;
  }
  if (!stop_.empty()) {
    if (stop_noticed_ == Clock::time_point{}) stop_noticed_ = now;
    return static_cast<int>(Request::stop);
  }
  return static_cast<int>(std::exchange(save_, false) ? Request::save : Request::none);
}

void Requests::look_at_files() {
  if (take_file("SAVE")) save_ = true;
  if (take_file("STOP")) stop_ = fmt::format("the file {}/STOP", dir_);
}

bool Requests::take_file(const char* name) const {
  std::error_code error;  // what cannot be removed would be obeyed again and again
  return std::filesystem::remove(std::filesystem::path(dir_) / name, error);
}

std::string Requests::reason() const {
  for (const std::string& reason : session_.all_gather(stop_))
    if (!reason.empty()) return reason;
  return "";
}

double Requests::seconds_since_notice() const {
  if (stop_noticed_ == Clock::time_point{}) return 0;
  return std::chrono::duration<double>(Clock::now() - stop_noticed_).count();
}

namespace {

using Texts = std::map<std::string, std::string>;

/// Options of a checkpoint of version 0.2, by the names that they have now.
Texts by_names_of_now(Texts options) {
  if (const auto warmup = options.find("--lr-warmup-epochs"); warmup != options.end())
    options["--lr-warmup"] = warmup->second;
  if (const auto buffers = options.find("--broadcast-buffers");
      buffers != options.end() && buffers->second == "true")
    options["--norm-stats"] = "broadcast";
  return options;
}

/// "NAME VALUE (was OTHER)" of each that both have with another value.
std::vector<std::string> differences(const Texts& saved, const Texts& now) {
  std::vector<std::string> different;
  for (const auto& [name, text] : now) {
    const auto found = saved.find(name);
    if (found != saved.end() && found->second != text)
      different.push_back(fmt::format("{} {} (was {})", name, text, found->second));
  }
  return different;
}

}  // namespace

std::vector<std::string> check_continues(const RunFacts& saved, const RunFacts& now,
                                         const std::string& file) {
  const auto refused = differences(saved.fixed, now.fixed);
  if (!refused.empty())
    throw UsageError(
        fmt::format("--resume {}: another training cannot continue it: {}; --resume none starts "
                    "from the beginning",
                    file, fmt::join(refused, ", ")));
  return differences(by_names_of_now(saved.options), now.options);
}

}  // namespace shakedown::training
