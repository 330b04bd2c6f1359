#include "resnet/plan_cache.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/host.hpp"
#include "common/record.hpp"

namespace shakedown {
namespace {

using Plans = std::map<std::string, std::string>;

/// The whole file, an object of machines; an empty one where there is no such file.
nlohmann::json contents(const std::string& file) {
  std::ifstream in(file);
  auto json = nlohmann::json::parse(in, nullptr, false);
  return json.is_object() ? json : nlohmann::json::object();
}

Plans plans_of(const nlohmann::json& all, const std::string& machine, const std::string& build) {
  try {
    const nlohmann::json& own = all.at(machine);
    if (own.at("build") == build) return own.at("plans").get<Plans>();
  } catch (const nlohmann::json::exception&) {  // no such object
  }
  return {};
}

}  // namespace

PlanCache::PlanCache(std::string file, std::string machine, std::string build)
    : file_(std::move(file)),
      machine_(std::move(machine)),
      build_(std::move(build)),
      plans_(plans_of(contents(file_), machine_, build_)) {}

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
  nlohmann::json all = contents(file_);
  Plans plans = plans_;
  plans.merge(plans_of(all, machine_, build_));
  all[machine_] = {{"build", build_}, {"plans", plans}};
  const std::string draft = fmt::format("{}.{}.{}", file_, host_name(), getpid());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), error);
  std::ofstream out(draft);
  out << json_text(all, 1) << '\n';
  out.close();
  if (out) std::filesystem::rename(draft, file_, error);
  if (out && !error) return true;
  std::filesystem::remove(draft, error);
  return false;
}

}  // namespace shakedown
