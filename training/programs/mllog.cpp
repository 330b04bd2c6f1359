#include "training/programs/mllog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"

namespace shakedown::training {
namespace {

constexpr std::string_view kPrefix = ":::MLLOG ";
constexpr const char* kStart = "INTERVAL_START";
constexpr const char* kEnd = "INTERVAL_END";
constexpr const char* kPoint = "POINT_IN_TIME";

constexpr double kTargetTop1 = 0.7590;
constexpr long kImageNetTraining = 1'281'167;
constexpr long kImageNetValidation = 50'000;

std::int64_t ms_of(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

std::int64_t now_ms() { return ms_of(std::chrono::system_clock::now()); }

std::int64_t ms(double seconds) { return std::llround(seconds * 1e3); }

/// Until one that is not whole, as a full disk leaves it.
std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  if (is_written_itself(path)) return lines;  // a pipe or a terminal has no beginning to read
  std::ifstream in(path, std::ios::binary);
  for (std::string text; std::getline(in, text) && text.starts_with(kPrefix);) {
    Json line = Json::parse(text.substr(kPrefix.size()), nullptr, false);
    if (!line.is_object() || !line.contains("key")) break;
    const Json about = line.value("metadata", Json());
    if (!about.is_object() || !about.value("epoch_num", Json(0)).is_number_integer() ||
        !about.value("status", Json("")).is_string())
      break;
    lines.push_back(std::move(line));
  }
  return lines;
}

void write_line(std::ostream& out, const Json& line) {
  out << kPrefix << json_text(line) << std::endl;
}

}  // namespace

void declare_options(OptionSet& options, MlLogOptions& values) {
  options
      .add("--mllog", values.file,
           "write MLPerf's log of the training (training rules 4.0.0, benchmark resnet) to this "
           "file; a training that continues continues it")
      .only_with({"--data-dir", "--val-dir"})
      .not_with({"--evaluate"})
      .metavar("FILE");
}

const char* division_of(const MlLogFacts& facts) {
  const bool benchmark = facts.model == "resnet50" && facts.classes == 1000 &&
                         facts.image_size == 224 && facts.train_images == kImageNetTraining &&
                         facts.val_images == kImageNetValidation;
  const std::string& optimizer = facts.optimizer.optimizer;
  return benchmark && facts.poly_power && (optimizer == "sgd" || optimizer == "lars") ? "closed"
                                                                                      : "open";
}

MlLog::MlLog(const MlLogOptions& options, bool continues) : path_(options.file) {
  if (path_.empty()) return;
  check_writable({"--mllog", path_});
  if (continues) {
    resume();
    return;
  }
  file_.open(path_, std::ios::binary | std::ios::trunc);
  const std::int64_t started = ms_of(options.started);
  write(kPoint, "cache_clear", false, started);  // the page cache is left as it was
  write(kStart, "init_start", nullptr, started);
}

MlLog::~MlLog() {
  try {
    if (running_) stop("aborted", epoch_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the disk is full, as was reported before
  }
}

void MlLog::resume() {
  const std::vector<Json> lines = read_lines(path_);
  for (const Json& line : lines) {
    begun_ = begun_ || line.at("key") == "run_start";
    epoch_ = std::max(epoch_, line.at("metadata").value("epoch_num", 0));
  }
  if (!begun_)
    throw UsageError(
        fmt::format("--mllog {}: the training continues, and this file does not have the beginning "
                    "of its log: name the file that has, or run with --resume none or without "
                    "--mllog",
                    path_));
  const Json& last = lines.back();
  running_ = last.at("metadata").value("status", "") != "success";
  if (running_) keep_before([](const Json& line) { return line.at("key") == "run_stop"; });
}

/// Takes the rest back.
void MlLog::keep_before(const std::function<bool(const Json& line)>& end) {
  const std::vector<Json> lines = read_lines(path_);
  file_.close();
  write_file({"--mllog", path_}, [&](std::ostream& out) {
    std::for_each(lines.begin(), std::find_if(lines.begin(), lines.end(), end),
                  [&](const Json& line) { write_line(out, line); });
  });
  file_.open(path_, std::ios::binary | std::ios::app);
}

void MlLog::begin(const MlLogFacts& facts) {
  if (path_.empty() || begun_) return;
  state("submission_benchmark", "resnet");
  state("submission_division", division_of(facts));
  state("submission_org", "none");  // the log is no submission
  state("submission_status", "research");
  state("submission_platform", facts.platform);
  state("seed", facts.seed);
  state("train_samples", facts.train_images);
  state("eval_samples", facts.val_images);
  state("global_batch_size", static_cast<long>(facts.batch_size) * facts.accumulate * facts.ranks);
  state("gradient_accumulation_steps", facts.accumulate);
  state("model_bn_span", facts.batch_size);
  const OptimizerOptions& optimizer = facts.optimizer;
  state("opt_name", optimizer.optimizer);
  const auto of_optimizer = [&](const char* key, const Json& value) {
    state((optimizer.optimizer + "_opt_" + key).c_str(), value);
  };
  of_optimizer("base_learning_rate", optimizer.learning_rate);
  of_optimizer("end_learning_rate", facts.end_learning_rate);
  of_optimizer("weight_decay", optimizer.weight_decay);
  of_optimizer("learning_rate_decay_steps", facts.decay_steps);
  if (facts.poly_power) of_optimizer("learning_rate_decay_poly_power", *facts.poly_power);
  if (optimizer.optimizer == "lars") {
    of_optimizer("learning_rate_warmup_epochs", facts.warmup_epochs);
    state("lars_epsilon", 0.0);
  } else {
    state("opt_learning_rate_warmup_epochs", facts.warmup_epochs);
  }
  if (optimizer.optimizer == "sgd" || optimizer.optimizer == "lars")
    of_optimizer("momentum", optimizer.momentum);
  write(kEnd, "init_stop", nullptr, now_ms());
  write(kStart, "run_start", nullptr, now_ms());
  running_ = true;
}

void MlLog::continue_at(int epoch) {
  if (!running_ || epoch > epoch_) return;
  keep_before(
      [&](const Json& line) { return line.at("metadata").value("first_epoch_num", 0) >= epoch; });
  epoch_ = epoch - 1;
}

void MlLog::add(const EpochResult& result) {
  if (!running_ || !result.trained || !result.validated) return;
  epoch_ = result.epoch;
  const std::int64_t end = now_ms();
  const std::int64_t start = end - ms(result.seconds);
  const std::int64_t trained = start + ms(result.trained->seconds);
  const Json epoch{{"epoch_num", result.epoch}};
  const Json block{{"first_epoch_num", result.epoch}, {"epoch_count", 1}};
  write(kStart, "block_start", nullptr, start, block);
  write(kStart, "epoch_start", nullptr, start, epoch);
  write(kEnd, "epoch_stop", nullptr, trained, epoch);
  write(kStart, "eval_start", nullptr, trained, epoch);
  write(kPoint, "eval_accuracy", result.validated->top1, end, epoch);
  write(kEnd, "eval_stop", nullptr, end, epoch);
  write(kEnd, "block_stop", nullptr, end, block);
  if (result.validated->top1 >= kTargetTop1) stop("success", result.epoch);
}

void MlLog::state(const char* key, const Json& value) { write(kPoint, key, value, now_ms()); }

void MlLog::stop(const char* status, int epoch) {
  running_ = false;
  write(kEnd, "run_stop", nullptr, now_ms(), {{"status", status}, {"epoch_num", epoch}});
}

void MlLog::write(const char* type, const char* key, const Json& value, std::int64_t time_ms,
                  const Json& metadata) {
  if (path_.empty()) return;
  const Json line{{"namespace", ""}, {"time_ms", time_ms}, {"event_type", type},
                  {"key", key},      {"value", value},     {"metadata", metadata}};
  write_line(file_, line);
  if (!file_)
    throw InconclusiveError(
        fmt::format("--mllog {}: cannot be written: {}", path_, std::strerror(errno)));
}

}  // namespace shakedown::training
