#include "resnet/plan_cache.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

namespace shakedown {
namespace {

using Plans = std::map<std::string, std::string>;

/// Against files cut short or written over; not against malice.
std::string checksum(const std::string& machine, const Plans& plans) {
  return fmt::format("{:016x}", std::hash<std::string>{}(machine + nlohmann::json(plans).dump()));
}

}  // namespace

PlanCache::PlanCache(std::string file, std::string machine)
    : file_(std::move(file)), machine_(std::move(machine)), plans_(read()) {}

Plans PlanCache::read() const {
  std::ifstream in(file_);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  try {
    if (json.at("machine") != machine_) return {};
    const auto plans = json.at("plans").get<Plans>();
    if (json.at("checksum") == checksum(machine_, plans)) return plans;
  } catch (const nlohmann::json::exception&) {  // not such a file
  }
  return {};
}

std::optional<std::string> PlanCache::find(const std::string& convolution) const {
  const auto found = plans_.find(convolution);
  if (found == plans_.end()) return std::nullopt;
  return found->second;
}

void PlanCache::keep(const std::string& convolution, const std::string& plan) {
  plans_[convolution] = plan;
  new_ = true;
}

bool PlanCache::save() {
  if (file_.empty() || !new_) return true;
  new_ = false;
  Plans plans = plans_;
  plans.merge(read());
  const std::string draft = fmt::format("{}.{}", file_, getpid());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), error);
  std::ofstream out(draft);
  out << nlohmann::json{{"machine", machine_},
                        {"plans", plans},
                        {"checksum", checksum(machine_, plans)}}
             .dump(1)
      << '\n';
  out.close();
  if (out) std::filesystem::rename(draft, file_, error);
  if (out && !error) return true;
  std::filesystem::remove(draft, error);
  return false;
}

}  // namespace shakedown
