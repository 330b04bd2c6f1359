// A training that continues from a checkpoint, with every strategy, and from wherever it ended.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/strategies.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/checkpoint/snapshot.hpp"
#include "training/data/batches.hpp"
#include "training/programs/epochs.hpp"

namespace shakedown::training {
namespace {

EngineSettings small_settings(const std::string& strategy, const std::string& optimizer = "sgd") {
  EngineSettings settings = test::smallest_settings(strategy);
  settings.network.tuning.deterministic = true;
  settings.optimizer.optimizer = optimizer;
  return settings;
}

/// Another batch at every update and on every rank.
void train(Engine& engine, int from, int to) {
  const auto rank = static_cast<std::uint64_t>(engine.world().rank());
  for (int update = from; update < to; ++update) {
    const auto batches =
        make_synthetic_batches(engine.device(), engine.stream(), engine.settings().network,
                               derive_seed(static_cast<std::uint64_t>(update), rank));
    engine.step.run([&](int) { batches->load_next(engine.model.network()); }, 0.01 / (1 + update));
    engine.finish();
  }
}

Checkpoint checkpoint_of(Engine& engine, const MpiSession& session) {
  Snapshot snapshot(engine, session);
  snapshot.take();
  if (!session.is_root()) return {};
  return {snapshot.state(), snapshot.tensors()};
}

void check_same_tensors(const Checkpoint& a, const Checkpoint& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    CAPTURE(a.tensors[i].name);
    const auto& x = a.tensors[i].values;
    const auto& y = b.tensors[i].values;
    CHECK(a.tensors[i].name == b.tensors[i].name);
    CHECK((x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0));
  }
}

void check_same(const Checkpoint& a, const Checkpoint& b) {
  CHECK(text_of(a.state) == text_of(b.state));
  check_same_tensors(a, b);
}

namespace fs = std::filesystem;

constexpr long kUpdates = 3;            // per epoch
constexpr long kValidationBatches = 8;  // more than the steps from a signal to its effect

EngineSettings interrupted_settings(const std::string& strategy) {
  EngineSettings settings = small_settings(strategy);
  settings.optimizer.clip_grad_norm = 1;  // needs the norm
  return settings;
}

/// Another batch at every step and on every rank, the same in every run; each cost a second.
class NumberedBatches final : public BatchSource {
 public:
  NumberedBatches(Engine& engine, long batches) : engine_(engine), batches_(batches) {}
  std::optional<DeviceBatch> next() override {
    if (given_ == batches_) return std::nullopt;
    const auto rank = static_cast<std::uint64_t>(engine_.world().rank());
    const auto number = static_cast<std::uint64_t>(epoch_ * batches_ + given_++);
    all_.push_back(make_synthetic_batches(engine_.device(), engine_.stream(),
                                          engine_.settings().network, derive_seed(number, rank)));
    times_.stall_s += 1;
    times_.images += 4;
    return all_.back()->next();
  }
  void start_epoch(int epoch, long first_batch) override {
    epoch_ = epoch;
    given_ = first_batch;
  }
  InputTimes times() const override { return times_; }

 private:
  Engine& engine_;
  const long batches_;
  int epoch_ = 0;
  long given_ = 0;
  InputTimes times_;
  std::vector<std::unique_ptr<BatchSource>> all_;  // the device may still read them
};

/// Called before each batch of a validation, with their numbers, from 1.
using Hook = std::function<void(int validation, int batch)>;

class Hooked final : public BatchSource {
 public:
  Hooked(std::unique_ptr<BatchSource> source, Hook hook)
      : source_(std::move(source)), hook_(std::move(hook)) {}
  std::optional<DeviceBatch> next() override { return source_->next(); }
  bool load_next(Network& network) override {
    hook_(validation_, ++batch_);
    return source_->load_next(network);
  }
  void start_epoch(int epoch, long first_batch) override {
    ++validation_;
    batch_ = 0;
    source_->start_epoch(epoch, first_batch);
  }
  int batch() const { return batch_; }

 private:
  std::unique_ptr<BatchSource> source_;
  Hook hook_;
  int validation_ = 0;
  int batch_ = 0;
};

struct Outcome {
  TrainingEnd end;
  int last_batch = 0;        // of the last validation
  std::vector<Json> epochs;  // as recorded, on rank 0
};

/// Epochs with checkpoints in a folder of all ranks.
class Trainings {
 public:
  explicit Trainings(const EngineSettings& settings)
      : settings_(settings), backend_(test::open_backend_of(test::backends().front())) {
    const auto name = "interrupted_test." + std::to_string(getpid());
    dir_ = fs::temp_directory_path() / test::session().all_gather(name).front();
  }
  ~Trainings() {
    test::session().barrier();
    std::error_code ignored;
    if (test::session().is_root()) fs::remove_all(dir_, ignored);
  }
  Trainings(const Trainings&) = delete;
  Trainings& operator=(const Trainings&) = delete;

  std::string dir(const char* name) const { return (dir_ / name).string(); }

  Outcome train(const char* name, const Hook& hook, BadImages* bad = nullptr, double minutes = 0,
                int epoch_count = 2) {
    const MpiSession& session = test::session();
    Engine engine(settings_, backend_);
    engine.allocate(session.local_size());
    const bool computes = engine.step.computes();
    const auto source = [&](long batches) -> std::unique_ptr<BatchSource> {
      if (!computes) return make_no_batches(batches);
      return std::make_unique<NumberedBatches>(engine, batches);
    };
    const auto training = source(kUpdates);
    Hooked validation(source(kValidationBatches), hook);
    const std::string recorded = session.is_root() ? dir(name) + ".jsonl" : "";
    fs::remove(recorded);
    Record record(recorded);
    Identity identity;
    identity.strategy = settings_.strategy.strategy;
    Outcome outcome;
    TrainOptions options;
    options.epochs = epoch_count;
    options.optimizer.learning_rate = 0.01;
    options.checkpoints.dir = dir(name);
    options.checkpoints.minutes = minutes;
    outcome.end = train_epochs({options, engine, *training, identity, session, record}, kUpdates,
                               &validation, {options.checkpoints, {}, {}, bad});
    std::ifstream lines(recorded);
    for (std::string line; std::getline(lines, line);)
      if (const Json written = Json::parse(line); written["kind"] == "epoch")
        outcome.epochs.push_back(written);
    outcome.last_batch = validation.batch();
    return outcome;
  }

  /// Of rank 0's, which has written it.
  TrainingPosition position(const char* name) const {
    const MpiSession& session = test::session();
    std::string text;
    if (session.is_root()) text = text_of(find_checkpoint(dir(name)).value().checkpoint.state);
    return state_of(session.all_gather(text).front()).position;
  }

  /// On rank 0: weights, statistics, optimiser, metrics and what the records show are the same.
  void check_same(const char* a, const Outcome& of_a, const char* b, const Outcome& of_b) const {
    if (!test::session().is_root()) return;
    const Checkpoint x = read_checkpoint(checkpoint_path(dir(a), kLatest));
    const Checkpoint y = read_checkpoint(checkpoint_path(dir(b), kLatest));
    CHECK(text_of({{}, {}, 0, x.state.ranks}) == text_of({{}, {}, 0, y.state.ranks}));
    CHECK(x.state.position.images == y.state.position.images);
    CHECK(x.state.position.best_top1 == y.state.position.best_top1);
    check_same_tensors(x, y);
    const Json& m = of_a.epochs.back();
    const Json& n = of_b.epochs.back();
    for (const char* key : {"train_loss", "grad_norm", "input_stall_ms", "val_loss"}) {
      CAPTURE(key);
      CHECK(m.at(key) == n.at(key));
    }
    CHECK(m.value("val_loss_ema", Json()) == n.value("val_loss_ema", Json()));
  }

 private:
  EngineSettings settings_;
  Backend backend_;
  fs::path dir_;
};

const Hook kUndisturbed = [](int, int) {};

}  // namespace

TEST_CASE("a training continues from a checkpoint bit for bit", "[checkpoint]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  int count = 0;
  for (const StrategyEntry& strategy : strategies()) {
    if (!strategy.ranks_agree || !test::can_run(strategy, backend.kind)) continue;
    const std::string optimizer = count++ % 2 == 0 ? "sgd" : "adam";
    CAPTURE(strategy.name, optimizer);
    const EngineSettings settings = small_settings(strategy.name, optimizer);
    Checkpoint half;
    Checkpoint whole;
    {
      Engine engine(settings, backend);
      engine.allocate(session.local_size());
      train(engine, 0, 2);
      half = checkpoint_of(engine, session);
      train(engine, 2, 4);
      whole = checkpoint_of(engine, session);
    }
    const std::string text = session.all_gather(session.is_root() ? text_of(half.state) : "")[0];
    Engine engine(settings, backend);
    engine.allocate(session.local_size());
    restore(engine, session, state_of(text), half.tensors, "the file");
    const Checkpoint restored = checkpoint_of(engine, session);
    if (session.is_root()) check_same(restored, half);
    train(engine, 2, 4);
    const Checkpoint continued = checkpoint_of(engine, session);
    if (session.is_root()) check_same(continued, whole);
  }
}

TEST_CASE("ranks that agree continue with the same count of updates", "[checkpoint]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  Engine engine(small_settings("ddp", "adam"), backend);
  engine.allocate(session.local_size());
  train(engine, 0, 1);
  const Checkpoint saved = checkpoint_of(engine, session);
  CheckpointState state =
      state_of(session.all_gather(session.is_root() ? text_of(saved.state) : "")[0]);
  int more = 0;  // as of workers that did not wait for one another
  for (RankNumbers& rank : state.ranks) rank.scalars.updates += more++;
  restore(engine, session, state, saved.tensors, "the file");
  train(engine, 1, 2);
  check_ranks_agree(engine, session, "in the end");
  CHECK(engine.model.read_scalars().updates == 2);
}

TEST_CASE("a checkpoint's tensors have the network's names, and the training's", "[checkpoint]") {
  const MpiSession& session = test::session();
  Backend backend = test::open_backend_of(test::backends().front());
  EngineSettings settings = small_settings("zero1", "adam");
  settings.strategy.norm_stats = GENERATE("first", "average");
  Engine engine(settings, backend);
  engine.allocate(session.local_size());
  train(engine, 0, 1);
  const Checkpoint checkpoint = checkpoint_of(engine, session);
  const std::vector<Tensor> state = engine.model.state();
  if (!session.is_root()) return;
  const std::size_t parameters = engine.model.network().table().parameters().size();
  REQUIRE(checkpoint.tensors.size() == state.size() + 2 * parameters + 1);
  for (std::size_t i = 0; i < state.size(); ++i) {
    CHECK(checkpoint.tensors[i].name == state[i].name);
    const auto& values = checkpoint.tensors[i].values;
    REQUIRE(values.size() == state[i].values.size());
    for (std::size_t k = 0; k < values.size(); ++k)  // an average's sum has another order
      if (std::abs(values[k] - state[i].values[k]) > 1e-6F * std::abs(values[k]))
        FAIL_CHECK(state[i].name << ": " << values[k] << ", not " << state[i].values[k]);
  }
  CHECK(checkpoint.tensors[state.size()].name == "training_state.exp_avg." + state[0].name);
  CHECK(checkpoint.tensors.back().shape[0] == session.world_size());
  // and as weights they load without a remark
  std::vector<float> master(engine.model.network().table().stored_count());
  CHECK(engine.model.network().take(checkpoint.tensors, "f", master).ignored.empty());
}

TEST_CASE("ranks agree on the highest value at the same step", "[checkpoint][session]") {
  const MpiSession& session = test::session();
  const int last = session.world_size() - 1;
  MpiAgreement agreement(session, 2);
  int seen = -1;
  for (int step = 0; step < 30; ++step) {
    const int value = session.rank() == last && step == 7 ? 2 : session.rank() == 0 && step == 8;
    const int highest = agreement.step(value);
    if (highest == 2) seen = step;
    CHECK(highest == (step == 7 + agreement.lag() ? 2 : step == 8 + agreement.lag() ? 1 : 0));
  }
  CHECK(session.all_gather(static_cast<double>(seen)) ==
        std::vector<double>(session.hosts().size(), 7.0 + agreement.lag()));
  agreement.step(session.rank() == last ? 1 : 0);
  CHECK(agreement.settle(0) == 1);
  CHECK(agreement.settle(0) == 0);
}

// A training that ends while it validates, and continues: its state is on the disk, bit for bit.

TEST_CASE("a signal ends a validation, and the next run validates", "[checkpoint][epochs]") {
  const MpiSession& session = test::session();
  const std::string strategy = GENERATE("ddp", "fsdp", "parameter-server");
  if (session.world_size() < find_strategy(strategy).ranks.least) return;
  CAPTURE(strategy);
  EngineSettings settings = interrupted_settings(strategy);
  if (strategy == "fsdp") settings.ema.ema = 0.9;
  if (strategy == "ddp") settings.strategy.norm_stats = "average";
  // a server hears it too; with an average of the weights the third validation is the average's
  const int to = strategy == "parameter-server" ? 0 : session.world_size() - 1;
  const int during = settings.ema.ema > 0 ? 4 : 2;
  Trainings trainings(settings);
  const Outcome whole = trainings.train("whole", kUndisturbed);
  CHECK(whole.end.code == ExitCode::pass);

  const FolderSource images({"d", {"a"}, {{"a/0", 0}, {"a/1", 0}, {"a/2", 0}}, {}});
  BadImages bad(2, [](const std::string&) {});
  const Outcome stopped = trainings.train(
      "interrupted",
      [&](int validation, int batch) {
        if (session.rank() != to || validation != during || batch != 2) return;
        bad.note(images, 1, "corrupt");
        std::raise(SIGTERM);
      },
      &bad);
  CHECK(stopped.end.code == ExitCode::stopped);
  CHECK_FALSE(stopped.end.complete);
  CHECK(stopped.last_batch < kValidationBatches);
  const TrainingPosition at = trainings.position("interrupted");
  CHECK(at.epoch == 2);
  CHECK(at.update == kUpdates);

  BadImages again(2, [](const std::string&) {});
  const Outcome continued = trainings.train("interrupted", kUndisturbed, &again);
  CHECK(continued.end.code == ExitCode::pass);
  CHECK(again.indices() == std::vector<std::size_t>{1});
  trainings.check_same("whole", whole, "interrupted", continued);
}

TEST_CASE("a training that is killed in a validation continues alike", "[checkpoint][epochs]") {
  struct Killed {};
  Trainings trainings(interrupted_settings("ddp"));
  const Outcome whole = trainings.train("whole", kUndisturbed);
  const auto dies = [](int validation, int batch) {
    if (validation == 2 && batch == 5) throw Killed();
  };
  CHECK_THROWS_AS(trainings.train("killed", dies, nullptr, 1e-9), Killed);
  CHECK(trainings.position("killed").update == kUpdates);
  const Outcome continued = trainings.train("killed", kUndisturbed);
  trainings.check_same("whole", whole, "killed", continued);
}

TEST_CASE("a stop that cannot write leaves the checkpoint before", "[checkpoint][epochs]") {
  const MpiSession& session = test::session();
  Trainings trainings(interrupted_settings("ddp"));
  const Outcome whole = trainings.train("whole", kUndisturbed);
  std::optional<test::FileLimit> full;
  const Outcome stopped = trainings.train("full", [&](int validation, int batch) {
    if (session.is_root() && validation == 2 && batch == 1) {
      // The first epoch's, the best so far, are written in the background: latest first.
      const auto best = checkpoint_path(trainings.dir("full"), kBest);
      for (int ms = 0; ms < 10000 && !std::filesystem::exists(best); ++ms)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      full.emplace(65536);
      std::raise(SIGTERM);
    }
  });
  full.reset();
  CHECK(stopped.end.code == ExitCode::inconclusive);
  CHECK_FALSE(stopped.end.complete);
  CHECK_FALSE(checkpoints_in(trainings.dir("full")).empty());  // as every rank sees it
  const TrainingPosition at = trainings.position("full");      // of the epoch before
  CHECK(at.epoch == 2);
  CHECK(at.update == 0);
  const Outcome continued = trainings.train("full", kUndisturbed);
  CHECK(continued.end.code == ExitCode::pass);
  trainings.check_same("whole", whole, "full", continued);
}

TEST_CASE("a best checkpoint that is not there is written after the next validation",
          "[checkpoint][epochs]") {
  const MpiSession& session = test::session();
  Trainings trainings(interrupted_settings("ddp"));
  const std::string best = checkpoint_path(trainings.dir("best"), kBest);
  const std::string obstacle = best + ".partial/kept";  // stops root too
  if (session.is_root()) fs::create_directories(obstacle);
  session.barrier();
  const auto remove_obstacle = [&](int validation, int batch) {
    if (session.is_root() && validation == 3 && batch == 1) fs::remove_all(best + ".partial");
  };
  const Outcome failed = trainings.train("best", remove_obstacle, nullptr, 0, 3);
  CHECK(failed.end.code == ExitCode::inconclusive);
  if (session.is_root()) {
    CHECK(fs::remove(best));
    fs::remove(previous_path(trainings.dir("best"), kBest));
  }
  CHECK(trainings.train("best", kUndisturbed, nullptr, 0, 4).end.code == ExitCode::pass);
  if (session.is_root()) CHECK(fs::exists(best));
}

}  // namespace shakedown::training
