// --invariant: every number of ranks has the bits of one.
#include <cstring>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support/strategies.hpp"
#include "training/exchange/invariant.hpp"
#include "training/measure/throughput.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

constexpr int kShards = 4;

bool divides_shards() { return kShards % test::session().world_size() == 0; }

EngineSettings settings_of(Precision precision, int ranks) {
  EngineSettings settings = test::settings_of(precision, "all-reduce");
  settings.network.tuning.deterministic = true;
  settings.optimizer.clip_grad_norm = 0.5;
  settings.ema.ema = 0.9;
  settings.strategy.invariant = kShards;
  settings.accumulate = kShards / ranks;
  return settings;
}

struct Trained {
  std::vector<Tensor> state;    // weights and running statistics
  std::vector<Tensor> average;  // of them
  float grad_norm = 0;
  double loss_sum = 0;
};

Trained train(const EngineSettings& settings, Backend& backend, const MpiSession& ranks) {
  Engine engine(settings, backend);
  engine.allocate(test::session().local_size());
  engine.model.network().zero_total_metrics();
  const int first = ranks.rank() * settings.accumulate;
  for (int step = 0; step < 3; ++step)
    engine.step.run([&](int micro) { test::load(engine.model.network(), first + micro, step); },
                    0.01);
  engine.finish();
  Trained trained{engine.model.state(), engine.model.average_state(),
                  engine.model.read_scalars().grad_norm, 0};
  for (const double sum : ranks.all_gather(engine.model.network().read_metrics().total.loss_sum))
    trained.loss_sum += sum;
  check_ranks_agree(engine, ranks, "here");
  return trained;
}

void check_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].name);
    REQUIRE(a[i].values.size() == b[i].values.size());
    CHECK(std::memcmp(a[i].values.data(), b[i].values.data(), a[i].values.size() * sizeof(float)) ==
          0);
  }
}

}  // namespace

TEST_CASE("several ranks train the bits of one that has all shards", "[invariant]") {
  const MpiSession& session = test::session();
  if (!divides_shards()) return;
  for (const BackendKind kind : test::backends())
    for (const Precision precision : {Precision::fp32, Precision::fp16}) {
      if (kind == BackendKind::cpu && precision == Precision::fp16) continue;
      CAPTURE(name_of(kind), name_of(precision));
      Backend backend = test::open_backend_of(kind);
      const auto self = session.split(session.rank());
      Backend alone = open_backend(backend, *self);
      const Trained one = train(settings_of(precision, 1), alone, *self);
      const Trained all = train(settings_of(precision, session.world_size()), backend, session);
      check_same_bits(all.state, one.state);
      check_same_bits(all.average, one.average);
      CHECK(all.grad_norm == one.grad_norm);
      CHECK(all.loss_sum == one.loss_sum);
      CHECK(one.grad_norm > 0.5F);  // it was clipped
    }
}

TEST_CASE("the mean of shards is that of one tree, and all ranks have it", "[invariant]") {
  const MpiSession& session = test::session();
  const std::size_t count = GENERATE(3, 64, 200, 1000);
  const int shards = GENERATE(1, 2, 8);
  const int ranks = session.world_size();
  if ((ranks & (ranks - 1)) != 0) return;
  CAPTURE(count, shards);
  Backend backend = test::open_backend_of(test::backends().front());
  Device& device = *backend.device;
  const auto stream = device.make_stream();

  const int all = shards * ranks;
  std::vector<std::vector<float>> arrays;  // of magnitudes at which every order rounds otherwise
  for (int shard = 0; shard < all; ++shard)
    arrays.push_back(test::random_values(count, static_cast<std::uint64_t>(shard) + 1, -3, 3));
  std::vector<std::vector<float>> level = arrays;
  while (level.size() > 1) {
    std::vector<std::vector<float>> sums;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      sums.push_back(level[i]);
      for (std::size_t k = 0; k < count; ++k) sums.back()[k] += level[i + 1][k];
    }
    level = sums;
  }
  for (float& value : level[0]) value /= static_cast<float>(all);

  ShardTree tree(device, *stream, *backend.world, count, shards);
  const Buffer array(device, count * sizeof(float));
  for (const int round : {0, 1}) {  // the memory serves again
    for (int shard = 0; shard < shards; ++shard) {
      upload<float>(device, *stream, array.data(), arrays[session.rank() * shards + shard]);
      tree.add(array.view(DataType::float32), shard);
    }
    const View mean = tree.mean();
    const auto event = device.make_event();
    event->record(*stream);
    backend.world->wait(*event, HostWait::polite);
    CAPTURE(round);
    CHECK(download<float>(device, *stream, mean.data, mean.count) == level[0]);
  }
}

}  // namespace shakedown::training
