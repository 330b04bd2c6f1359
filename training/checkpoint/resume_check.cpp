#include "training/checkpoint/resume_check.hpp"

#include <fmt/format.h>

#include <map>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

using Texts = std::vector<std::pair<std::string, std::string>>;

/// "NAME VALUE (was OTHER)" of each that both have with another value.
std::vector<std::string> differences(const Texts& saved, const Texts& now) {
  const std::map<std::string, std::string> before(saved.begin(), saved.end());
  std::vector<std::string> different;
  for (const auto& [name, text] : now) {
    const auto found = before.find(name);
    if (found != before.end() && found->second != text)
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
  return differences(saved.options, now.options);
}

}  // namespace shakedown::training
