// Training over epochs, the weights that it starts from, and what is said of those that are no
// numbers.
#include "training/programs/epochs.hpp"

#include <optional>

#include "resnet/tensor_file.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/strategies.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {
namespace {

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

/// Trains on these for some epochs.
void train(Engine& engine, BatchSource& batches, BatchSource* validation, int epochs) {
  Record record("");
  Identity identity;
  identity.strategy = engine.settings().strategy.strategy;
  TrainOptions options;
  options.epochs = epochs;
  options.optimizer.learning_rate = 0.01;
  train_epochs({options, engine, batches, identity, test::session(), record}, 1, validation);
}

}  // namespace

TEST_CASE("validation uses no device memory in addition to the plan's", "[epochs]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  Engine engine(test::smallest_settings("none"),
                backend);  // each rank has weights of its own to put aside
  engine.allocate(session.local_size());
  OneBatch training(engine);
  OneBatch validation(engine);
  const std::vector<float> start = engine.model.master_weights();
  engine.device().restart_peak();
  const std::size_t planned = engine.device().allocated_bytes();
  train(engine, training, &validation, 1);
  CHECK(engine.device().peak_allocated_bytes() == planned);
  CHECK(engine.model.master_weights() != start);
}

TEST_CASE("rank 0 alone reads the weights to start from, once", "[epochs]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  EngineSettings settings = test::smallest_settings("ddp");
  settings.seed = 1;
  std::optional<test::TempFolder> folder(std::in_place);
  const std::string file = *folder / "w.safetensors";
  std::vector<Tensor> saved;
  {
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    OneBatch training(engine);
    train(engine, training, nullptr, 3);
    saved = engine.model.state();
  }
  if (session.is_root()) write_safetensors({"--save", file}, saved);
  settings.seed = 2;
  settings.model.weights = session.is_root() ? file : "/nowhere";
  Engine engine(settings, backend);
  engine.allocate(session.local_size());
  folder.reset();
  engine.model.set_weights(std::vector<float>(engine.model.master_weights().size()));
  for (int start = 0; start < 2; ++start) {
    const std::vector<Tensor> loaded = engine.model.state();
    REQUIRE(loaded.size() == saved.size());
    bool all_equal = true;
    for (std::size_t i = 0; i < saved.size(); ++i)
      all_equal = all_equal && loaded[i].values == saved[i].values;
    CHECK(all_equal == (start == 1));  // its numbers of batches as well
    engine.model.restart();
  }
}

TEST_CASE("statistics of other weights have no average", "[epochs]") {
  Backend backend = test::open_backend_of(test::backends().front());
  EngineSettings settings = test::smallest_settings("none");
  settings.strategy.norm_stats = "average";
  if (test::session().world_size() == 1) {
    CHECK_NOTHROW(Engine(settings, backend));
    return;
  }
  CHECK_THROWS_WITH(Engine(settings, backend),
                    ContainsSubstring("--norm-stats average: the ranks of --strategy none"));
  settings.strategy.norm_stats = "first";
  CHECK_NOTHROW(Engine(settings, backend));
}

TEST_CASE("a weight that is not a number is named, with its rank", "[epochs]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  for (const char* strategy : {"none", "zero1"}) {
    CAPTURE(strategy);
    Engine engine(test::smallest_settings(strategy), backend);
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
