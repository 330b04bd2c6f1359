// Command lines of bin/train and bin/compare, parsed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/exit_code.hpp"
#include "common/options.hpp"
#include "tests/catch.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown::training {

using Arguments = std::vector<const char*>;

/// Parses "train ARGUMENTS".
template <class Options>
struct ParsedAs {
  Options values;
  OptionSet set{"train", "test"};
  std::optional<OptionSet::Ending> ending;

  explicit ParsedAs(Arguments arguments) {
    arguments.insert(arguments.begin(), "train");
    declare_options(set, values);
    ending = set.parse(static_cast<int>(arguments.size()), arguments.data());
  }
};
using Parsed = ParsedAs<TrainOptions>;

/// The usage error without "train: ", or "".
template <class Options = TrainOptions>
std::string complaint(Arguments arguments) {
  const ParsedAs<Options> p(std::move(arguments));
  if (!p.ending) return "";
  CHECK(p.ending->code == ExitCode::usage);
  CHECK(p.ending->text.starts_with("train: "));
  return p.ending->text.substr(7, p.ending->text.size() - 8);
}

}  // namespace shakedown::training
