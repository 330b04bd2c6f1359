#include "resnet/model_options.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "common/options.hpp"
#include "common/usage_error.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

namespace {

constexpr std::pair<const char*, Fusion> kFusions[] = {{"auto", Fusion::automatic},
                                                       {"none", Fusion::none},
                                                       {"statistics", Fusion::statistics},
                                                       {"gradients", Fusion::gradients},
                                                       {"gram", Fusion::gram},
                                                       {"stem", Fusion::stem},
                                                       {"all", Fusion::all}};

}  // namespace

void declare_options(OptionSet& options, ModelOptions& values) {
  std::vector<std::string> fusions;
  for (const auto& [name, fusion] : kFusions) fusions.emplace_back(name);
  std::vector<std::string> names;
  std::vector<std::string> for_tests;
  for (const Architecture& architecture : architectures())
    (architecture.for_tests ? for_tests : names).push_back(architecture.name);
  options.heading("Network");
  options.add("--model", values.model, "network").one_of(names).unlisted(for_tests).first();
  options
      .add("--weights", values.weights,
           "start from this .safetensors file with torchvision's parameter names")
      .existing_file(
          "weights come from --save, or from PyTorch through training/convert_weights.py (see its "
          "--help: torchvision's resnet50-0676ba61.pth and others)")
      .metavar("FILE")
      .default_text("seeded");
  options.add("--image-size", values.image_size, "height and width of the images, 32 to 8192")
      .at_least(kLeastImageSize)
      .at_most(kMostImageSize)
      .metavar("PIXELS");
  options.add("--classes", values.classes, "number of classes of synthetic data")
      .at_least(1)
      .idle_with({"--data-dir", "--train-dir", "--val-dir"});
  options
      .add("--precision", values.precision,
           "type of activations, weights and gradients; the cpu backend computes in fp32 and says "
           "so")
      .one_of({"auto", "fp32", "tf32", "fp16", "bf16"})
      .default_text("tf32 on gpu, fp32 on cpu")
      .first();
  options.add_alias("--amp,--use-amp", "--precision", "fp16");
  options
      .add(
          "--label-smoothing", values.label_smoothing,
          "share of the target that is spread over all classes, in the training and the validation "
          "loss")
      .at_least(0)
      .below(1);
  options
      .add("--autotune", values.autotune,
           "time each convolution's candidate algorithms; off: use the first")
      .not_with({"--deterministic"});
  options.add("--deterministic", values.deterministic,
              "use bitwise-reproducible algorithms only, without autotuning");
  options
      .add(
          "--fusion", values.fusion,
          "kernel fusion. statistics: batch-norm statistics in the convolution epilogue (cuDNN "
          "genstats), as E[z^2] - E[z]^2 in fp32, less exact where a channel's mean is far larger "
          "than its deviation; gradients: batch-norm backward reductions in the 1x1 "
          "data-gradient kernels, in fp16 and bf16; gram: a bottleneck's last batch norm through "
          "the Gram matrix of its convolution's input, whose output is never stored, on Hopper, "
          "in fp16 and bf16, at 64, 128 and 256 channels, less exact in the same case; stem: "
          "the first convolution with its max-pooling and batch-norm statistics, and its weight "
          "gradient with the gradient of both, in fp16 and bf16, at image sizes that are multiples "
          "of 32, up to 288 on Hopper and 192 on A100; all: all four; auto: per layer, unless "
          "timing finds it more than 4 % slower, "
          "gram where that output exceeds two thirds of the L2 cache, stem wherever possible; "
          "without --autotune none")
      .one_of(fusions);
  options.add("--recompute", values.recompute,
              "activation checkpointing: recompute activations inside residual blocks in backward");
  options
      .add("--plan-cache", values.plan_cache,
           "file with the fastest algorithms found, so that a later run need not time them; off: "
           "none")
      .idle_with({"--deterministic"})
      .metavar("FILE")
      .default_text("$XDG_CACHE_HOME or ~/.cache, shakedown/plans.json");
  options.check([&] { tuning_of(values); });
}

Tuning tuning_of(const ModelOptions& options) {
  Tuning tuning;
  tuning.autotune = options.autotune;
  tuning.deterministic = options.deterministic;
  for (const auto& [name, fusion] : kFusions)
    if (options.fusion == name) tuning.fusion = fusion;
  if (tuning.deterministic && tuning.requests(Fusion::statistics))
    throw UsageError(fmt::format(
        "--fusion {} cannot be combined with --deterministic: its sums differ from run to run",
        options.fusion));
  tuning.cache = options.plan_cache;
  if (tuning.cache == "off") tuning.cache.clear();
  if (tuning.cache != "auto") return tuning;
  const auto directory = [](const char* variable) -> std::string {
    const char* value = std::getenv(variable);
    return value == nullptr ? "" : value;
  };
  tuning.cache = directory("XDG_CACHE_HOME");
  if (tuning.cache.empty() && !directory("HOME").empty())
    tuning.cache = directory("HOME") + "/.cache";
  if (!tuning.cache.empty()) tuning.cache += "/shakedown/plans.json";
  return tuning;
}

}  // namespace shakedown
