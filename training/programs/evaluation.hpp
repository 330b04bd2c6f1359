// Validation during a training run, and --evaluate: loss, top-1, top-5 and logits of --weights on
// --val-dir.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "training/data/image_source.hpp"
#include "training/programs/run.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct EvaluationOptions {
  bool evaluate = false;
  std::string logits;  // a .safetensors file, or empty
};
void declare_options(OptionSet& options, EvaluationOptions& values);

struct Validation {
  double loss = 0;
  double top1 = 0;
  double top5 = 0;
  std::int64_t images = 0;
  std::optional<int> rank = {};  // whose statistics normalised; none: their average
};

/// The metrics of all ranks, added up. Collective.
Metrics total_metrics(Engine& engine, const MpiSession& session);

/// All ranks that compute validate the same weights, each on a part of the images. `go_on` runs on
/// every rank after each batch, and returns the same on all: where it is false the validation is
/// abandoned, and there is none. Collective.
std::optional<Validation> validate(Engine& engine, BatchSource& batches, const MpiSession& session,
                                   const std::function<bool()>& go_on);

/// Validates --weights on all images of `source`, which `batches` reads; prints the result, writes
/// an "epoch" record of epoch 0 and the file of logits. Throws FailError where the loss is not
/// finite, UsageError where the weights have no classifier for these classes. Collective.
ExitCode evaluate(const Run& run, BatchSource& batches, const ImageSource& source,
                  const EvaluationOptions& options);

/// The rows of an N x `width` matrix in the order of the images, from the parts of `ranks` ranks:
/// rank r has the rows r, r + ranks, ...; every part has as many rows as the longest.
std::vector<float> interleaved(const std::vector<float>& parts, std::size_t rows, std::size_t width,
                               std::size_t ranks);

}  // namespace shakedown::training
