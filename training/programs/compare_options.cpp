#include "training/programs/compare_options.hpp"

#include <fmt/format.h>

#include <utility>

#include "common/options.hpp"
#include "common/usage_error.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {
namespace {

constexpr int kImageNetImages = 1281167;  // ILSVRC 2012, training

constexpr const char* kUsage = R"(Usage: launch/mpi [-n RANKS] compare [options]
       one rank per visible GPU, else two on the CPU; see launch/mpi --help

  launch/mpi compare --record r.jsonl
  launch/mpi compare --strategies ddp,zero1 --ranks 2,4,8 --precision fp16
  launch/mpi compare --strategies ddp --settings all
)";

}  // namespace

void declare_options(OptionSet& options, CompareOptions& values) {
  options.usage(kUsage);
  options.heading("Comparison");
  options
      .add("--ranks,--rank", values.ranks,
           "list of numbers of ranks: the first ones of the job compute together")
      .at_least(1)
      .default_text("all of the job")
      .first();
  options
      .add("--repeats", values.repeats,
           "measurements of each configuration, interleaved with the others")
      .at_least(1);
  options
      .add("--settings", values.settings,
           "list of switches, each compared with plain ddp at the first bucket cap on the most "
           "ranks")
      .one_of(setting_names())
      .unlisted({"bucket-copy", "small-last", "normal-priority"})
      .brings("--strategies", "ddp")
      .first();
  options
      .add("--epoch-images", values.epoch_images, "images per epoch, for the reported epoch time")
      .at_least(1)
      .default_text(fmt::format("{}, as ImageNet, or the folder's", kImageNetImages));
  options.check([&] {
    for (const std::string& name : values.settings)
      if (name == "bucket-copy" || name == "small-last" || name == "normal-priority")
        throw UsageError(
            fmt::format("--settings {} was removed: within 0.5 % of plain ddp at 25 "
                        "MiB (results/0.1/h200/settings-2gpu.jsonl)",
                        name));
  });
  options.refuse("--verbose", "results/report FILE --verbose prints it from the record");
  options.refuse("--csv", kCsvOfReport);
  options.take_list("--strategies", values.train.strategy.strategy, values.strategies);
  options.take_list("--models", values.train.model.model, values.models);
  options.take_list("--precisions", values.train.model.precision, values.precisions);
  options.take_list("--batch-sizes", values.train.batch_size, values.batch_sizes);
  options.take_list("--bucket-caps,--bucket-cap", values.train.strategy.bucket_cap_mb,
                    values.bucket_caps_mb);
  declare_step_options(options, values.train);
}

void take_saved_model(const OptionSet& set, CompareOptions& options) {
  if (options.models.size() > 1) return;  // the weights are of one model
  options.train.model.model = options.models.front();
  take_saved_model(set, options.train.model);
  options.models = {options.train.model.model};
}

long epoch_images(const CompareOptions& options, const Dataset& data) {
  if (options.epoch_images > 0) return options.epoch_images;
  return data.synthetic() ? kImageNetImages : static_cast<long>(data.training().size());
}

namespace {

/// Whether it was another.
template <class T>
bool set(T& target, const T& value) {
  return std::exchange(target, value) != value;
}

}  // namespace

const std::vector<Setting>& settings() {
  using Options = StepOptions;
  static const std::vector<Setting> table{
      {"autotune-off", true, [](Options& o) { return set(o.model.autotune, false); }},
      // both keep float32 in memory; other precisions are no neighbours of theirs
      {"tf32", true, [](Options& o) { return std::exchange(o.model.precision, "tf32") == "fp32"; }},
      {"fp32", true, [](Options& o) { return std::exchange(o.model.precision, "fp32") == "tf32"; }},
      {"broadcast-buffers", false,
       [](Options& o) { return set<std::string>(o.strategy.norm_stats, "broadcast"); }},
      {"no-overlap", false, [](Options& o) { return set(o.strategy.no_overlap, true); }},
      {"no-graph", true, [](Options& o) { return set<std::string>(o.graph, "off"); }},
  };
  return table;
}

std::string Setting::apply(StepOptions& options, BackendKind backend) const {
  if (only_gpu && backend != BackendKind::gpu) return "only on the gpu backend";
  if (change(options)) return "";
  return "no change from plain ddp with these options";
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Setting& setting : settings()) names.emplace_back(setting.name);
  return names;
}

}  // namespace shakedown::training
