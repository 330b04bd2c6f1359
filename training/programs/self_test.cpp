#include "training/programs/self_test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/hash.hpp"
#include "common/program.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/train_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

constexpr int kWindow = 20;  // steps, over which loss and accuracy are averaged
constexpr int kWindows = 10;
constexpr double kLearningRate = 0.02;
constexpr std::size_t kCounts[] = {1, 1000, 1 << 20};  // elements per rank
constexpr int kRepetitions = 3;

// ---- communication
// --------------------------------------------------------------------------------

constexpr std::size_t kPeriod = 61;  // of the values, in elements

/// The sums of all ranks' values, over one period.
std::vector<float> sums_of(int ranks, int repetition) {
  std::vector<float> sums(kPeriod, 0.0F);
  for (std::size_t i = 0; i < kPeriod; ++i)
    for (int r = 0; r < ranks; ++r) sums[i] += self_test_value(ranks, r, i, repetition);
  return sums;
}

/// One collective: how many parts of `count` elements it sends and receives, and what arrives.
struct Collective {
  const char* name;
  int sent;
  int received;
  std::function<void(ConstView, View, Stream&)> run;
  std::function<float(std::size_t element, std::size_t count, int repetition)> expected;
};

std::vector<Collective> collectives(Communicator& world) {
  const int n = world.size();
  const int rank = world.rank();
  std::vector<std::vector<float>> sums;
  for (int k = 0; k < kRepetitions; ++k) sums.push_back(sums_of(n, k));
  const auto sum_of = [sums](std::size_t element, int repetition) {
    return sums[static_cast<std::size_t>(repetition)][element % kPeriod];
  };
  const auto value_of = [n](int of_rank, std::size_t element, int repetition) {
    return self_test_value(n, of_rank, element, repetition);
  };
  return {
      {"all_reduce", 1, 1,
       [&](auto send, auto recv, auto& s) { world.all_reduce(send, recv, Reduction::sum, s); },
       [=](std::size_t i, std::size_t, int k) { return sum_of(i, k); }},
      {"broadcast", 1, 1,
       [&world, n](auto send, auto recv, auto& s) { world.broadcast(send, recv, n - 1, s); },
       [=](std::size_t i, std::size_t, int k) { return value_of(n - 1, i, k); }},
      {"all_gather", 1, n, [&](auto send, auto recv, auto& s) { world.all_gather(send, recv, s); },
       [=](std::size_t i, std::size_t count, int k) {
         return value_of(static_cast<int>(i / count), i % count, k);
       }},
      {"reduce_scatter", n, 1,
       [&](auto send, auto recv, auto& s) { world.reduce_scatter(send, recv, Reduction::sum, s); },
       [=](std::size_t i, std::size_t count, int k) {
         return sum_of(static_cast<std::size_t>(rank) * count + i, k);
       }}};
}

/// The first wrong element that arrives on this rank, or "".
std::string fault_of(const Collective& collective, std::size_t count, int repetition,
                     Communicator& world, Device& device, Stream& stream) {
  std::vector<float> sent(count * static_cast<std::size_t>(collective.sent));
  for (std::size_t i = 0; i < sent.size(); ++i)
    sent[i] = self_test_value(world.size(), world.rank(), i, repetition);
  const Buffer send(device, sent.size() * sizeof(float));
  const Buffer recv(device, count * static_cast<std::size_t>(collective.received) * sizeof(float));
  upload<float>(device, stream, send.data(), sent);
  collective.run(send.view(DataType::float32), recv.view(DataType::float32), stream);
  const auto done = device.make_event();
  done->record(stream);
  world.wait(*done, HostWait::polite);
  const auto found = download<float>(device, stream, recv.data(), recv.bytes() / sizeof(float));
  for (std::size_t i = 0; i < found.size(); ++i)
    if (const float expected = collective.expected(i, count, repetition); found[i] != expected)
      return fmt::format("element {} of {} is {}, not {}", i, found.size(), found[i], expected);
  return "";
}

Verdict test_collective(const Collective& collective, Backend& backend, const MpiSession& session) {
  const auto stream = backend.device->make_stream();
  const auto verdict = [&](Outcome outcome, const std::string& cause) {
    return Verdict{Scope::operation, fmt::format("{} float32", collective.name), outcome, cause};
  };
  for (const std::size_t count : kCounts)
    for (int k = 0; k < kRepetitions; ++k) {
      const auto faults = session.all_gather(
          fault_of(collective, count, k, *backend.world, *backend.device, *stream));
      for (std::size_t r = 0; r < faults.size(); ++r)
        if (!faults[r].empty())
          return verdict(Outcome::fail,
                         fmt::format("rank {} on {}: {}", r, session.hosts()[r], faults[r]));
    }
  if (session.world_size() == 1)
    return verdict(Outcome::inconclusive, "one rank exchanges nothing");
  return verdict(Outcome::pass, fmt::format("exact, {} times with up to {} per rank", kRepetitions,
                                            readable_bytes(kCounts[2] * sizeof(float))));
}

// ---- training
// -------------------------------------------------------------------------------------

/// Noise with one bright quadrant, which is the class; a few batches in device memory, over and
/// over.
class GeneratedBatches final : public BatchSource {
 public:
  GeneratedBatches(Engine& engine, std::uint64_t seed) {
    constexpr int kBatches = 8;
    const NetworkSettings& shape = engine.settings().network;
    const auto n = static_cast<std::size_t>(shape.batch_size);
    const auto side = static_cast<std::size_t>(shape.image_size);
    Random random(seed);
    for (int b = 0; b < kBatches; ++b) {
      std::vector<std::uint8_t> images(n * side * side * 3);
      std::vector<std::int32_t> labels(n);
      for (std::int32_t& label : labels) label = static_cast<std::int32_t>(random.below(4));
      for (std::size_t i = 0; i < images.size(); ++i) {
        const std::size_t pixel = i / 3 % (side * side);
        const std::size_t quadrant = pixel / side / (side / 2) * 2 + pixel % side / (side / 2);
        const bool bright = static_cast<std::size_t>(labels[i / (3 * side * side)]) == quadrant;
        images[i] = static_cast<std::uint8_t>((bright ? 100 : 0) + random.below(156));
      }
      images_.push_back(to_device(engine, images));
      labels_.push_back(to_device(engine, labels));
    }
  }

  std::optional<DeviceBatch> next() override {
    const std::size_t b = next_++ % images_.size();
    return DeviceBatch{static_cast<const std::uint8_t*>(images_[b].data()),
                       static_cast<const std::int32_t*>(labels_[b].data())};
  }
  void start_epoch(int, long) override { next_ = 0; }

 private:
  template <class T>
  static Buffer to_device(Engine& engine, const std::vector<T>& values) {
    Buffer buffer(engine.device(), values.size() * sizeof(T));
    upload<T>(engine.device(), engine.stream(), buffer.data(), values);
    return buffer;
  }

  std::vector<Buffer> images_;
  std::vector<Buffer> labels_;
  std::size_t next_ = 0;
};

SelfTraining train(Engine& engine, BatchSource& batches, const MpiSession& session) {
  SelfTraining trained;
  Network& network = engine.model.network();
  batches.start_epoch(0);
  for (int window = 1; window <= kWindows; ++window) {
    network.zero_total_metrics();
    for (int i = 0; i < kWindow; ++i)
      engine.step.run([&](int) { batches.load_next(network); }, kLearningRate);
    engine.finish();
    const Metrics total = total_metrics(engine, session);
    const auto images = static_cast<double>(total.samples);
    trained.losses.push_back(total.loss_sum / images);
    trained.top1 = static_cast<double>(total.top1) / images;
    if (!engine.step.strategy_entry().ranks_agree || !trained.differed.empty()) continue;
    if (const std::string ranks = differing_ranks(engine, session); !ranks.empty())
      trained.differed = fmt::format("after step {} {}", window * kWindow, ranks);
  }
  trained.skipped =
      static_cast<int>(std::ranges::max(session.all_gather(engine.model.read_scalars().skipped)));
  return trained;
}

}  // namespace

float self_test_value(int ranks, int rank, std::size_t element, int repetition) {
  constexpr int kExact = 1 << 24;                     // float32 has every integer up to it
  const int values = std::min(4093, kExact / ranks);  // a prime: they differ by rank
  const auto multiple = static_cast<std::size_t>(rank + 1) * (element % kPeriod + 1);
  return static_cast<float>(
      (multiple + static_cast<std::size_t>(repetition)) % static_cast<std::size_t>(values) + 1);
}

Verdict verdict_on_loss(const SelfTraining& trained) {
  const double first = trained.losses.front();
  const double last = trained.losses.back();
  return {Scope::job, "training", last < first / 2 ? Outcome::pass : Outcome::fail,
          fmt::format("loss from {:.4f} to {:.4f}, top-1 {:.1f} %, in {} steps", first, last,
                      100 * trained.top1, kWindow * kWindows)};
}

Verdict verdict_on_stability(const SelfTraining& trained, const std::string& unsound) {
  const auto fails = [](const std::string& cause) {
    return Verdict{Scope::job, "stability", Outcome::fail, cause};
  };
  for (std::size_t window = 0; window < trained.losses.size(); ++window)
    if (!std::isfinite(trained.losses[window]))
      return fails(
          fmt::format("the loss is not finite by step {}", (window + 1) * std::size_t{kWindow}));
  if (!unsound.empty()) return fails(unsound + " is not finite");
  if (trained.skipped > 0)
    return fails(
        fmt::format("{} steps were skipped: their gradients were not finite", trained.skipped));
  return {Scope::job, "stability", Outcome::pass,
          fmt::format("{} steps: every loss and weight is finite, no step was skipped",
                      kWindow * kWindows)};
}

Verdict verdict_on_gradients(const StrategyEntry& strategy, const Certificate& certificate,
                             const SelfTraining& trained) {
  const auto verdict = [](Outcome outcome, const std::string& cause) {
    return Verdict{Scope::job, "gradient synchronisation", outcome, cause};
  };
  if (!trained.differed.empty()) return verdict(Outcome::fail, trained.differed);
  if (!certificate.applies()) return verdict(Outcome::inconclusive, certificate.waived);
  if (!certificate.passes())
    return verdict(certificate.outcome,
                   !certificate.cause.empty()
                       ? certificate.cause
                       : fmt::format("{} computes other weights than {}, in {}", strategy.name,
                                     certificate.reference, certificate.difference.tensor));
  return verdict(Outcome::pass,
                 fmt::format("{} averages the gradients of {} ranks, each once{}, equal on all "
                             "ranks in every bit",
                             strategy.name, certificate.census.ranks,
                             certificate.reference.empty()
                                 ? ""
                                 : ", and computes the weights of " + certificate.reference));
}

EngineSettings self_test_settings(const TrainOptions& options, const Backend& backend) {
  constexpr int kClasses = 4;
  TrainOptions small = options;
  small.model.model = "tiny";
  small.model.image_size = 32;
  small.model.autotune = false;
  small.batch_size = 16;
  return engine_settings(small, backend, kClasses);
}

ExitCode run_self_test(const EngineSettings& settings, Backend& backend, const MpiSession& session,
                       Record& record) {
  std::vector<Verdict> verdicts;
  const auto conclude = [&](Verdict verdict) {
    if (verdict.outcome == Outcome::inconclusive && session.world_size() == 1)
      verdict.action = "start two ranks or more: launch/mpi train --self-test";
    say(session, line_of(verdict));
    record.write("verdict", merged({{"backend", name_of(backend.kind)},
                                    {"transport", backend.world->transport()},
                                    {"world_size", session.world_size()}},
                                   record_of(verdict)));
    verdicts.push_back(std::move(verdict));
  };
  for (const Collective& collective : collectives(*backend.world))
    conclude(test_collective(collective, backend, session));

  Engine engine(settings, backend);
  engine.allocate(ranks_on_device(backend, session));
  GeneratedBatches batches(engine,
                           settings.seed_of(2000 + static_cast<std::uint64_t>(session.rank())));
  const Certificate certificate = certify(engine, batches, kLearningRate, session);
  const SelfTraining trained = train(engine, batches, session);
  conclude(verdict_on_loss(trained));
  conclude(verdict_on_gradients(engine.step.strategy_entry(), certificate, trained));
  conclude(verdict_on_stability(trained, unsound_weights(engine, session)));
  return worst(verdicts);
}

}  // namespace shakedown::training
