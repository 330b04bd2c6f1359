#include "tests/support/strategies.hpp"

#include "common/mpi_session.hpp"

namespace shakedown::test {

using namespace training;

int image_size() { return has(BackendKind::gpu) ? 64 : 32; }

std::vector<Case> cases() {
  std::vector<Case> list;
  for (BackendKind kind : test::backends()) {
    list.push_back({kind, Precision::fp32});
    if (kind == BackendKind::gpu) list.push_back({kind, Precision::fp16});
  }
  return list;
}

EngineSettings smallest_settings(const std::string& strategy) {
  EngineSettings settings;
  settings.network.architecture = {"resnet6", false, {1, 1, 0, 0}};
  settings.network.batch_size = 4;
  settings.network.image_size = 32;
  settings.network.classes = kClasses;
  settings.network.tuning.autotune = false;
  settings.optimizer.learning_rate = 0.01;
  settings.strategy.strategy = strategy;
  return settings;
}

EngineSettings settings_of(Precision precision, const std::string& strategy) {
  EngineSettings settings;
  settings.network.architecture = find_architecture("tiny");
  settings.network.batch_size = kBatch;
  settings.network.image_size = image_size();
  settings.network.classes = kClasses;
  settings.network.precision = precision;
  settings.network.tuning.autotune = false;
  settings.network.tuning.fusion = Fusion::none;  // cuDNN's sums differ from run to run
  settings.optimizer.learning_rate = 1e-3;
  settings.strategy.strategy = strategy;
  settings.seed = 11;
  return settings;
}

EngineRig::EngineRig(const EngineSettings& settings, BackendKind kind)
    : backend(open_backend_of(kind)), engine(settings, backend) {
  engine.allocate(session().local_size());
  batches = make_synthetic_batches(engine.device(), engine.stream(), settings.network,
                                   static_cast<std::uint64_t>(session().rank()) + 1);
}

void load(Network& network, int shard, int step) {
  const auto seed = static_cast<std::uint64_t>(1000 * (step + 1) + shard);
  std::vector<std::int32_t> labels;
  Random random(seed);
  for (int i = 0; i < kBatch; ++i)
    labels.push_back(static_cast<std::int32_t>(random.below(kClasses)));
  set_batch(network, random_values(kBatch * 3 * image_size() * image_size(), seed, -2, 2), labels);
}

StrategyOptions small_buckets_of(const std::string& strategy) {
  StrategyOptions options;
  options.strategy = strategy;
  options.small_bucket_mb = 0.125;
  options.bucket_cap_mb = 0.25;
  return options;
}

bool can_run(const StrategyEntry& entry, BackendKind backend) {
  return session().world_size() >= entry.ranks.least &&
         (backend == BackendKind::gpu || !entry.peers);
}

std::vector<StrategyOptions> exchanging_strategies(BackendKind backend) {
  std::vector<StrategyOptions> list;
  for (const StrategyEntry& entry : strategies()) {
    if (!entry.ranks_agree || !can_run(entry, backend)) continue;
    list.push_back(small_buckets_of(entry.name));
  }
  return list;
}

}  // namespace shakedown::test
