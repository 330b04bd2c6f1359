// A training that ends while it validates, and continues: its state is on the disk, bit for bit.
#include <unistd.h>

#include <chrono>
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
#include "tests/support/file_limit.hpp"
#include "tests/support/strategies.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/programs/epochs.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;

constexpr long kUpdates = 3;            // per epoch
constexpr long kValidationBatches = 8;  // more than the steps from a signal to its effect

EngineSettings small_settings(const std::string& strategy) {
  EngineSettings settings = test::small_settings(strategy);
  settings.network.tuning.deterministic = true;
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
    REQUIRE(x.tensors.size() == y.tensors.size());
    for (std::size_t i = 0; i < x.tensors.size(); ++i) {
      const auto& u = x.tensors[i].values;
      const auto& v = y.tensors[i].values;
      CAPTURE(x.tensors[i].name);
      CHECK((u.size() == v.size() && std::memcmp(u.data(), v.data(), u.size() * 4) == 0));
    }
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

TEST_CASE("a signal during a validation ends it, and the next run validates again",
          "[checkpoint][epochs]") {
  const MpiSession& session = test::session();
  const std::string strategy = GENERATE("ddp", "fsdp", "parameter-server");
  if (session.world_size() < find_strategy(strategy).ranks.least) return;
  CAPTURE(strategy);
  EngineSettings settings = small_settings(strategy);
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
  Trainings trainings(small_settings("ddp"));
  const Outcome whole = trainings.train("whole", kUndisturbed);
  const auto dies = [](int validation, int batch) {
    if (validation == 2 && batch == 5) throw Killed();
  };
  CHECK_THROWS_AS(trainings.train("killed", dies, nullptr, 1e-9), Killed);
  CHECK(trainings.position("killed").update == kUpdates);
  const Outcome continued = trainings.train("killed", kUndisturbed);
  trainings.check_same("whole", whole, "killed", continued);
}

TEST_CASE("a checkpoint that cannot be written at a stop leaves the one before",
          "[checkpoint][epochs]") {
  const MpiSession& session = test::session();
  Trainings trainings(small_settings("ddp"));
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
  CHECK(has_checkpoint(trainings.dir("full")));            // as every rank sees it
  const TrainingPosition at = trainings.position("full");  // of the epoch before
  CHECK(at.epoch == 2);
  CHECK(at.update == 0);
  const Outcome continued = trainings.train("full", kUndisturbed);
  CHECK(continued.end.code == ExitCode::pass);
  trainings.check_same("whole", whole, "full", continued);
}

TEST_CASE("a training whose checkpoints cannot be written ends, and keeps the last one",
          "[checkpoint][epochs]") {
  const MpiSession& session = test::session();
  Trainings trainings(small_settings("ddp"));
  std::optional<test::FileLimit> full;
  constexpr int kEpochs = 40;
  const Outcome ended = trainings.train(
      "full",
      [&](int validation, int batch) {
        if (session.is_root() && validation == 3 && batch == 1) full.emplace(65536);
      },
      nullptr, 0, kEpochs);
  full.reset();
  CHECK(ended.end.code == ExitCode::inconclusive);
  CHECK_FALSE(ended.end.complete);
  if (session.is_root()) CHECK(ended.epochs.size() < kEpochs / 2);
  const TrainingPosition at = trainings.position("full");
  CHECK(at.epoch >= 2);
  CHECK(at.epoch <= 3);
}

}  // namespace shakedown::training
