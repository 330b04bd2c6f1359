// Training over epochs, and what is said of weights that are no numbers.
#include "training/programs/epochs.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/measure/weights_check.hpp"

namespace shakedown::training {
namespace {

EngineSettings small_settings(const std::string& strategy) {
  EngineSettings settings;
  settings.network.architecture = {"resnet6", false, {1, 1, 0, 0}};  // smaller than any known
  settings.network.batch_size = 4;
  settings.network.image_size = 32;
  settings.network.classes = 10;
  settings.network.tuning.autotune = false;
  settings.strategy.strategy = strategy;
  return settings;
}

/// Epochs of one batch.
class OneBatch final : public BatchSource {
 public:
  explicit OneBatch(Engine& engine)
      : endless_(make_synthetic_batches(engine.device(), engine.stream(), engine.settings().network,
                                        1)) {}
  std::optional<DeviceBatch> next() override {
    return given_++ == 0 ? endless_->next() : std::nullopt;
  }
  void start_epoch(int, long) override { given_ = 0; }

 private:
  std::unique_ptr<BatchSource> endless_;
  int given_ = 0;
};

}  // namespace

TEST_CASE("validation uses no device memory in addition to the plan's", "[epochs]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  Engine engine(small_settings("none"), backend);  // each rank has weights of its own to put aside
  engine.allocate(session.local_size());
  OneBatch training(engine);
  OneBatch validation(engine);
  Record record("");
  const std::vector<float> start = engine.model.master_weights();
  engine.device().restart_peak();
  const std::size_t planned = engine.device().allocated_bytes();
  Identity identity;
  identity.strategy = "none";
  train_epochs({engine, training, identity, session, record}, 1, &validation, {1, 0.01, {}});
  CHECK(engine.device().peak_allocated_bytes() == planned);
  CHECK(engine.model.master_weights() != start);
}

TEST_CASE("a weight that is not a number is named, with its rank", "[epochs]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  for (const char* strategy : {"none", "zero1"}) {
    CAPTURE(strategy);
    Engine engine(small_settings(strategy), backend);
    engine.allocate(session.local_size());
    CHECK_NOTHROW(check_weights(engine, session, "here"));
    std::vector<float> weights = engine.model.master_weights();
    const ParameterTable& table = engine.model.network().table();
    const auto conv1 = static_cast<std::size_t>(table.parameter("conv1.weight"));
    // the stem is the last in the flat order: of zero1's shards, the last rank's
    const int last = session.world_size() - 1;
    if (strategy == std::string("zero1") || session.rank() == last)
      weights[table.parameters()[conv1].offset] = NAN;
    engine.model.set_weights(weights);
    CHECK_THROWS_WITH(check_weights(engine, session, "here"),
                      ContainsSubstring("conv1.weight on rank " + std::to_string(last)));
  }
}

}  // namespace shakedown::training
