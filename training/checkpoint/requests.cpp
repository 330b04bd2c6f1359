#include "training/checkpoint/requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace shakedown::training {
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

}  // namespace shakedown::training
