// The kernels of an update, on every backend, against plain arithmetic; schedules against PyTorch.
#include "training/step/update_kernels.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <sstream>

#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/options.hpp"
#include "tests/support/transcript.hpp"
#include "training/exchange/strategy.hpp"
#include "training/programs/train_options.hpp"
#include "training/step/optimizer.hpp"
#include "training/step/schedule.hpp"

namespace shakedown::training {
namespace {

struct Rig : test::DeviceRig {
  explicit Rig(BackendKind kind)
      : DeviceRig(kind),
        elementwise(device->kernels()),
        owned(make_update_kernels(*device)),
        kernels(*owned),
        scalars(*device, sizeof(StepScalars)) {}

  void set(const StepScalars& values) {
    upload<StepScalars>(*device, *stream, scalars.data(), std::span(&values, 1));
  }
  StepScalars get() { return download<StepScalars>(*device, *stream, scalars.data(), 1).front(); }
  StepScalars* on_device() { return static_cast<StepScalars*>(scalars.data()); }

  const Kernels& elementwise;
  std::unique_ptr<UpdateKernels> owned;
  const UpdateKernels& kernels;
  Buffer scalars;
};

/// What the optimiser kernels work on, as plain vectors.
struct Values {
  std::vector<float> w, g, a, b;
  explicit Values(std::size_t count)
      : w(test::random_values(count, 1)),
        g(test::random_values(count, 2)),
        a(test::random_values(count, 3)),
        b(test::random_values(count, 4, 0, 1)) {}
};

}  // namespace

TEST_CASE("optimisers follow PyTorch's formulas", "[update]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const std::string optimizer =
      GENERATE("sgd", "nesterov", "lars", "lars nesterov", "adam", "adamw");
  const bool masked = GENERATE(false, true);
  const std::size_t count = 300;
  Values h(count);
  const Buffer w = rig.of(h.w);
  const Buffer g = rig.of(h.g);
  const Buffer a = rig.of(h.a);
  const Buffer b = rig.of(h.b);
  const Buffer mask = rig.of<std::uint8_t>({1, 0, 1, 0, 1});
  UpdateRange range;
  range.master = static_cast<float*>(w.data());
  range.gradient = g.data();
  range.state_a = static_cast<float*>(a.data());
  range.state_b = static_cast<float*>(b.data());
  if (masked) range.decayed = static_cast<const std::uint8_t*>(mask.data());
  const Buffer tensors = rig.of<std::uint16_t>({0, 0, 1, 1, 2});
  const Buffer trust = rig.of<float>({0.5F, 1, 0.25F});
  range.tensors = static_cast<const std::uint16_t*>(tensors.data());
  range.trust = static_cast<const float*>(trust.data());
  range.count = count;
  StepScalars scalars;
  scalars.learning_rate = 0.1F;
  scalars.loss_scale = 4;
  scalars.clip = 0.5F;
  scalars.updates = 6;
  rig.set(scalars);

  const double decay = 0.05;
  const bool nesterov = optimizer.ends_with("nesterov");
  const bool is_lars = optimizer.starts_with("lars");
  const bool is_sgd = optimizer == "sgd" || optimizer == "nesterov";
  const UpdateRule rule{is_sgd    ? UpdateRule::sgd
                        : is_lars ? UpdateRule::lars
                                  : UpdateRule::adam,
                        {0.9F, static_cast<float>(decay), nesterov},
                        {0.9, 0.999, 1e-8F, static_cast<float>(decay), optimizer == "adamw"}};
  const auto update = [&] { rig.kernels.update(range, rule, rig.on_device(), *rig.stream); };
  update();

  std::vector<double> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const double wd = masked && i / kFlatAlignment % 2 == 1 ? 0 : decay;
    double weight = h.w[i];
    double gradient = h.g[i] * 0.5 / 4.0;
    if (optimizer == "adamw")
      weight -= 0.1 * wd * weight;
    else
      gradient += wd * weight;
    if (is_sgd) {
      const double m = 0.9 * h.a[i] + gradient;
      weight -= 0.1 * (nesterov ? gradient + 0.9 * m : m);
    } else if (is_lars) {
      const double ratio = i < 128 ? 0.5 : i < 256 ? 1 : 0.25;
      const double moved = 0.1 * ratio * gradient;
      const double m = 0.9 * h.a[i] + moved;
      weight -= nesterov ? moved + 0.9 * m : m;
    } else {
      const double m = 0.9 * h.a[i] + 0.1 * gradient;
      const double v = 0.999 * h.b[i] + 0.001 * gradient * gradient;
      weight -=
          0.1 * (m / (1 - std::pow(0.9, 7))) / (std::sqrt(v / (1 - std::pow(0.999, 7))) + 1e-8);
    }
    wanted.push_back(weight);
  }
  CHECK(test::relative_error(rig.floats(w, count), wanted) < 1e-6);

  // a step with a non-finite gradient changes nothing
  scalars.finite = 0;
  rig.set(scalars);
  const auto before = rig.floats(w, count);
  const auto momentum = rig.floats(a, count);
  update();
  CHECK(rig.floats(w, count) == before);
  CHECK(rig.floats(a, count) == momentum);
}

// Gradients that were exchanged in another type than they, and the weights' copy, are computed in.
TEST_CASE("optimisers accept gradients of any type with a copy of any other", "[update]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const bool sgd = GENERATE(true, false);
  const DataType type = GENERATE(DataType::float32, DataType::float16, DataType::bfloat16);
  CAPTURE(name_of(rig.device->kind()), sgd, name_of(type));
  const std::size_t count = 300;
  const Values h(count);
  const auto update = [&](ConstView gradient, View copy) {
    const Buffer w = rig.of(h.w);
    const Buffer a = rig.of(h.a);
    const Buffer b = rig.of(h.b);
    rig.set({.learning_rate = 0.1F, .loss_scale = 4});
    UpdateRange range;
    range.master = static_cast<float*>(w.data());
    range.compute = copy.data;
    range.compute_type = copy.type;
    range.gradient = gradient.data;
    range.gradient_type = gradient.type;
    range.state_a = static_cast<float*>(a.data());
    range.state_b = static_cast<float*>(b.data());
    range.count = count;
    rig.kernels.update(range, {sgd ? UpdateRule::sgd : UpdateRule::adam}, rig.on_device(),
                       *rig.stream);
    return rig.floats(w, count);
  };

  const Buffer narrow(*rig.device, count * size_of(type));
  const Buffer wide(*rig.device, count * sizeof(float));
  const View rounded = wide.view(DataType::float32);
  rig.elementwise.convert(rig.of(h.g).view(DataType::float32), narrow.view(type), *rig.stream);
  rig.elementwise.convert(narrow.view(type), rounded, *rig.stream);
  const std::vector<float> wanted = update(rounded, {});
  CHECK(update(narrow.view(type), {}) == wanted);
  if (rig.device->kind() == BackendKind::cpu) return;  // it computes with the weights themselves
  for (DataType copied : {DataType::float32, DataType::float16, DataType::bfloat16}) {
    CAPTURE(name_of(copied));
    const Buffer copy(*rig.device, count * size_of(copied));
    CHECK(update(narrow.view(type), copy.view(copied)) == wanted);
    const Buffer expected(*rig.device, copy.bytes());
    rig.elementwise.convert(rig.of(wanted).view(DataType::float32), expected.view(copied),
                            *rig.stream);
    CHECK(download<std::byte>(*rig.device, *rig.stream, copy.data(), copy.bytes()) ==
          download<std::byte>(*rig.device, *rig.stream, expected.data(), copy.bytes()));
  }
}

TEST_CASE("the loss scale halves on a skip and doubles after 2000 steps", "[update]") {
  Rig rig(GENERATE(from_range(test::backends())));
  StepScalars scalars;
  scalars.loss_scale = 1024;
  scalars.since_rescale = 1998;
  rig.set(scalars);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  CHECK(rig.get().loss_scale == 1024);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  CHECK(rig.get().loss_scale == 2048);
  CHECK(rig.get().updates == 2);
  scalars = rig.get();
  scalars.finite = 0;
  rig.set(scalars);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  scalars = rig.get();
  CHECK(scalars.loss_scale == 1024);
  CHECK(scalars.skipped == 1);
  CHECK(scalars.updates == 2);
  CHECK(scalars.finite == 1);
  scalars.loss_scale = 0x1p127F;  // the next power of two is infinity
  scalars.since_rescale = 1999;
  rig.set(scalars);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  CHECK(rig.get().loss_scale == 0x1p127F);
  rig.kernels.set_learning_rate(rig.on_device(), 0.125F, *rig.stream);
  CHECK(rig.get().learning_rate == 0.125F);
}

// torch.nn.utils.clip_grad_norm_ and MLPerf's trust ratio, of gradients of a scaled loss. The
// ranks' shards cut parameters.
TEST_CASE("norms of sharded parameters clip gradients and adapt rates", "[update]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const int ranks = GENERATE(1, 3);
  const ParameterTable table(layers_of(find_architecture("tiny")), 10, 3);
  const shakedown::Weights weights(*rig.device, *rig.stream, table, DataType::float32);
  std::vector<double> of_weight;
  std::vector<double> of_gradient;
  for (const Parameter& p : table.parameters()) {
    const auto fill = [&](View at, unsigned seed) {
      const auto values = test::random_values(p.stored, seed);
      upload<float>(*rig.device, *rig.stream, at.data, values);
      double sum = 0;
      for (float v : values) sum += static_cast<double>(v) * v;
      return sum;
    };
    const Range range{p.offset, p.offset + p.stored};
    of_weight.push_back(fill(weights.master(range), 1));
    of_gradient.push_back(fill(weights.gradients(range), 2));
  }

  const double clip = 0.5;
  const double decay = 0.01;
  const NormSettings settings{static_cast<float>(clip), 0.001F, static_cast<float>(decay)};
  const std::size_t parameters = table.parameters().size();
  std::vector<float> sums(2 * parameters, 0);
  ParameterNorms norms(settings, true, *rig.device, *rig.stream, table, rig.kernels);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Range> ranges;
    std::vector<Share> shares;
    for (int block = 0; block < table.blocks(); ++block) {
      ranges.push_back(shard_of(table.block_range(block), rank, ranks));
      shares.push_back({ranges.back(), weights.gradients(ranges.back())});
    }
    norms.allocate(ranges);
    norms.measure(shares, weights);
    const auto part = download<float>(*rig.device, *rig.stream, norms.sums().data, sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  upload<float>(*rig.device, *rig.stream, norms.sums().data, sums);
  rig.set({.loss_scale = 8});
  norms.apply(rig.on_device());

  const double norm = std::sqrt(std::accumulate(of_gradient.begin(), of_gradient.end(), 0.0)) / 8;
  const double factor = clip / (norm + 1e-6);
  REQUIRE(factor < 1);
  CHECK(rig.get().grad_norm == Approx(norm));
  CHECK(rig.get().clip == Approx(factor));
  const auto trust = download<float>(*rig.device, *rig.stream, norms.trust(), parameters);
  for (std::size_t p = 0; p < parameters; ++p) {
    CAPTURE(table.parameters()[p].name);
    const double w = std::sqrt(of_weight[p]);
    const double g = std::sqrt(of_gradient[p]) / 8 * factor;
    const bool adapted = table.parameters()[p].shape.size() > 1;
    CHECK(trust[p] == Approx(adapted ? 0.001 * w / (g + decay * w) : 1));
  }

  // gradients within the norm are not scaled up
  upload<float>(*rig.device, *rig.stream, norms.sums().data,
                std::vector<float>(sums.size(), 1e-9F));
  norms.apply(rig.on_device());
  CHECK(rig.get().clip == 1);
}

TEST_CASE("the average of the weights warms up, and skips what is skipped", "[update]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const int every = GENERATE(1, 3);
  const std::size_t count = 70;
  const Buffer average = rig.of(std::vector<float>(count, 1));
  double wanted = 1;
  int averages = 0;
  for (int update = 0; update < 30; ++update) {
    const auto now = static_cast<float>(update % 4);
    const bool finite = update % 5 != 4;
    StepScalars scalars = rig.get();
    if (update == 0) scalars = {};
    scalars.finite = finite ? 1 : 0;
    rig.set(scalars);
    rig.kernels.average(average.view(DataType::float32),
                        rig.of(std::vector<float>(count, now)).view(DataType::float32),
                        {0.5F, every}, rig.on_device(), *rig.stream);
    rig.kernels.finish_update(rig.on_device(), false, *rig.stream);
    if (!finite || (scalars.updates + 1) % every != 0) continue;
    ++averages;
    const double decay = std::min(0.5, (1.0 + averages) / (10.0 + averages));
    wanted = decay * wanted + (1 - decay) * now;
  }
  CHECK(averages >= 8);
  for (float value : rig.floats(average, count)) CHECK(value == Approx(wanted));
}

TEST_CASE("learning rates of schedules", "[schedule]") {
  test::check_transcript("tests/training/schedules.txt", [](const std::string& given) {
    std::istringstream words(given);
    std::string line, rates;
    std::getline(words, line);
    const test::ParsedAs<TrainOptions> parsed("--data-dir d " + line);
    if (parsed.ending) return test::complaint_of(parsed.set, parsed.ending);
    const TrainOptions& options = parsed.values;
    long updates = 0;  // per epoch
    words >> updates;
    try {
      const Schedule schedule(options.schedule, options.optimizer.learning_rate, options.epochs,
                              updates);
      for (double epoch = 0; words >> epoch;)
        rates += fmt::format(" {:.6g}", schedule.at(std::lround(epoch * updates)));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return rates.substr(1);
  });
}

}  // namespace shakedown::training
