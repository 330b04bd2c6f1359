#include "training/programs/history.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/options.hpp"
#include "common/output_file.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kOption = "--history";

/// In the files' order. Accuracies are percentages, as PyTorch's example scripts have them.
constexpr const char* kKeys[] = {"epoch",         "train_loss",       "train_acc",
                                 "val_loss",      "val_acc",          "val_acc_top5",
                                 "learning_rate", "images_per_s",     "input_stall_ms",
                                 "epoch_time",    "peak_memory_bytes"};

Json row_of(const EpochResult& result) {
  Json row;
  for (const char* key : kKeys) row[key] = nullptr;
  row["epoch"] = result.epoch;
  row["epoch_time"] = result.seconds;
  if (const auto& trained = result.trained) {
    row["train_loss"] = trained->loss;
    row["train_acc"] = 100 * trained->top1;
    row["learning_rate"] = trained->learning_rate;
    row["images_per_s"] = trained->images_per_s;
    row["input_stall_ms"] = 1e3 * trained->input.stall_s;
    row["peak_memory_bytes"] =
        *std::max_element(trained->peak_memory_bytes.begin(), trained->peak_memory_bytes.end());
  }
  if (const auto& validated = result.validated) {
    row["val_loss"] = validated->loss;
    row["val_acc"] = 100 * validated->top1;
    row["val_acc_top5"] = 100 * validated->top5;
  }
  return row;
}

std::string json_file(const std::string& folder) { return folder + "/training_history.json"; }

/// The rows of a file of lists; throws Json::exception where it is none.
Json read_rows(std::istream& in) {
  const Json lists = Json::parse(in);
  Json rows = Json::array();
  for (std::size_t i = 0; i < lists.at("epoch").size(); ++i) {
    Json row;
    for (const char* key : kKeys) row[key] = lists.at(key).at(i);
    row.at("epoch").get<int>();
    rows.push_back(row);
  }
  return rows;
}

void write_lists(std::ostream& out, const Json& rows) {
  Json lists;
  for (const char* key : kKeys) {
    lists[key] = Json::array();
    for (const Json& row : rows) lists[key].push_back(row.at(key));
  }
  out << json_text(lists, 1) << '\n';
}

void write_csv(std::ostream& out, const Json& rows) {
  out << fmt::format("{}\n", fmt::join(kKeys, ","));
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const Json& value : row)
      cells.push_back(json_text(value) == "null" ? "" : json_text(value));
    out << fmt::format("{}\n", fmt::join(cells, ","));
  }
}

/// results/report, next to the folder of this program.
std::string report_program() {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (self.parent_path().parent_path() / "results" / "report").string();
}

/// Whether the program ended with 0.
bool succeeds(const std::string& program, std::vector<std::string> arguments) {
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawn(&child, program.c_str(), nullptr, nullptr, words.data(), environ) != 0)
    return false;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return false;
  return status == 0;
}

}  // namespace

void declare_options(OptionSet& options, HistoryOptions& values) {
  options
      .add("--history", values.folder,
           "write training_history.json and .csv to this folder after each epoch, and curves.png "
           "at the end")
      .only_with({"--epochs"})
      .metavar("DIR");
}

History::History(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  check_writable({kOption, json_file(folder_)});
  std::ifstream in(json_file(folder_));
  if (!in) return;
  try {
    epochs_ = read_rows(in);
  } catch (const Json::exception&) {
    throw UsageError(
        fmt::format("{} {}: its training_history.json is not one of bin/train; name "
                    "another folder",
                    kOption, folder_));
  }
}

void History::continue_at(int epoch) {
  Json kept = Json::array();
  for (const Json& row : epochs_)
    if (row.at("epoch") < epoch) kept.push_back(row);
  if (kept.size() == epochs_.size()) return;
  epochs_ = std::move(kept);
  write();
}

void History::add(const EpochResult& result) {
  if (folder_.empty()) return;
  epochs_.push_back(row_of(result));
  write();
}

void History::write() const {
  write_file({kOption, json_file(folder_)}, [&](auto& out) { write_lists(out, epochs_); });
  write_file({kOption, folder_ + "/training_history.csv"},
             [&](auto& out) { write_csv(out, epochs_); });
}

void History::draw_curves() const {
  if (folder_.empty()) return;
  if (!succeeds(report_program(), {"--history", folder_}))
    fmt::print(stderr, "--history {}: no curves.png; results/report --history {} draws it\n",
               folder_, folder_);
}

}  // namespace shakedown::training
