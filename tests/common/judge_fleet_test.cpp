// The judge on healthy fleets and slow GPUs, drawn from records of real ones.
#include <cmath>
#include <ctime>

#include "tests/catch.hpp"
#include "tests/common/judge_records.hpp"

using namespace shakedown;
using namespace shakedown::judge;

namespace {

using judge::Random;  // not shakedown::Random

/// A metric as a fleet is drawn from it: a good unit's samples, and how units differ.
struct Model {
  Observation unit;  // whose samples amount to the figure's value
  ReferenceFigure figure;
  const Limit* limit = nullptr;
};

/// The figure is the reference's, or what the record and the limits know.
Model model_of(const Observation& o) {
  Model model{o, {}, failing_limit(o.metric)};
  const Statistic statistic = model.limit->statistic;
  const double value = statistic_of(o.samples, statistic, o.less_is_better());
  const ReferenceFigure* known = References::embedded().find(o);
  if (known != nullptr && known->kind == "measured" && known->units >= 3) {
    model.figure = *known;
  } else {
    model.figure.metric = o.metric;
    model.figure.unit = o.unit;
    model.figure.value = value;
    model.figure.kind = "measured";
    model.figure.units = 3;
    model.figure.between = model.limit->spread;
    model.figure.look = look_spread(o.samples, statistic, o.less_is_better());
    model.figure.path_class = o.path_class;
    model.figure.conditions = o.conditions;
    model.figure.clock_mhz = o.seen.clock_mhz;
  }
  for (double& sample : model.unit.samples) sample *= model.figure.value / value;
  return model;
}

/// How far units of a fleet are from the usual, in standard deviations of units: of many, the
/// slowest, which alone can fail, and a few that stand for all others.
std::vector<double> deviations(std::size_t fleet, Random& random) {
  constexpr std::size_t kSlowest = 4, kTypical = 20;
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<double> found;
  double below = 1;  // the share of units that are faster: uniform order statistics from the top
  for (std::size_t i = 0; fleet > kSlowest + kTypical && i < kSlowest; ++i) {
    below *= std::pow(uniform(random), 1 / static_cast<double>(fleet - i));
    double low = -10, high = 10;
    while (high - low > 1e-6) {
      const double middle = (low + high) / 2;
      (std::erfc(middle / std::sqrt(2.0)) / 2 > 1 - below ? low : high) = middle;
    }
    found.push_back(high);
  }
  while (found.size() < std::min(fleet, kSlowest + kTypical)) found.push_back(normal(random));
  return found;
}

/// Healthy GPUs of one board, as programs measure them: who seems slow is measured again.
class Fleet {
 public:
  Fleet(const std::vector<Model>& models, std::size_t size, Random& random)
      : models_(models), random_(random) {
    std::normal_distribution<double> normal;
    for (std::size_t m = 0; m < models.size(); ++m) {
      const ReferenceFigure& figure = models[m].figure;
      const double between = std::max(figure.between, 2e-4);
      // Of the reference, which is the median of a few units.
      const double shift = normal(random) * between * std::sqrt(1.57 / figure.units);
      for (const double z : deviations(size, random)) {
        drawn_.push_back({m, shift + z * between});
        look(drawn_.size() - 1, 1);
      }
    }
  }

  Judgement judged_with(const References& references) {
    Judgement judgement = judged(all_, references);
    for (int number = 2; number <= 4; ++number) {
      const std::vector<std::size_t> slow = suspects(judgement);
      if (slow.empty()) break;
      for (const std::size_t one : slow) {
        const std::string subject = all_[one].of.key();
        look(std::stoul(subject.substr(subject.rfind(' '))), number);
      }
      judgement = judged(all_, references);
    }
    return judgement;
  }

 private:
  struct Unit {
    std::size_t model;
    double r;
  };

  void look(std::size_t unit, int number) {
    const auto& [m, r] = drawn_[unit];
    const Model& model = models_[m];
    Observation o = model.unit;
    o.of = {o.of.scope, std::to_string(unit), {0}, {"n" + std::to_string(unit % 512)}, {}, {}};
    o.of.uuids = {o.of.name};
    o.look = number;
    o.samples.resize(model.limit->samples);
    std::uniform_int_distribution<std::size_t> any(0, model.unit.samples.size() - 1);
    for (double& sample : o.samples) sample = slowed(o, model.unit.samples[any(random_)], r);
    all_.push_back(std::move(o));
  }

  const std::vector<Model>& models_;
  Random& random_;
  std::vector<Unit> drawn_;
  std::vector<Observation> all_;
};

/// What runs on one thread, whatever else the machine does.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TEST_CASE("of 1,000 healthy fleets nobody is accused", "[judge]") {
  struct Board {
    std::vector<Model> models;
    References good;
  };
  std::vector<Board> boards;
  for (const auto& [name, observations] : recorded()) {
    std::vector<Model> models;
    Reference reference;
    for (const auto& [metric, group] : by_metric(observations)) {
      models.push_back(model_of(group.front()));
      reference.figures.push_back(models.back().figure);
    }
    if (models.empty()) continue;
    reference.name = name;
    reference.models = {name};
    reference.pci_device_ids = {models.front().unit.pci_device_id.substr(0, 9)};
    boards.push_back({models, References({reference})});
  }
  REQUIRE(!boards.empty());
  const References none(std::vector<Reference>{});
  constexpr std::size_t kSizes[] = {8, 8, 8, 8, 8, 128, 128, 128, 4096, 4096};
  judge::Random random(13);
  std::string accused;
  for (std::size_t i = 0; i < 1000; ++i) {
    const auto& [models, good] = boards[i / 10 % boards.size()];
    const std::size_t size = kSizes[i % 10];
    const Judgement judgement = Fleet(models, size, random).judged_with(i % 4 == 0 ? none : good);
    for (const Verdict& verdict : judgement.findings)
      if (verdict.scope != Scope::node && verdict.outcome >= Outcome::inconclusive)
        accused += fmt::format("of {}: {}\n", size, line_of(verdict));
  }
  CHECK(accused == "");
}

TEST_CASE("of two GPUs as recorded the one at a quarter of its speed is named", "[judge]") {
  std::vector<Observation> all;
  for (const auto& [metric, group] : by_metric(recorded().begin()->second))
    for (const Observation& o : group)
      if (o.of.scope == Scope::gpu || o.of.scope == Scope::link) all.push_back(o);
  const Judgement healthy = judged(all);
  for (const Verdict& verdict : healthy.findings) UNSCOPED_INFO(line_of(verdict));
  CHECK(healthy.job.outcome == Outcome::pass);
  CHECK_THAT(healthy.job.cause, ContainsSubstring("would have found"));
  const auto of_gpu = [](const Observation& o) { return o.of.scope == Scope::gpu; };
  const std::string slow = std::find_if(all.begin(), all.end(), of_gpu)->of.name;
  for (Observation& o : all)
    if (o.of.name == slow)
      for (double& sample : o.samples) sample = slowed(o, sample, 3);
  const Judgement judgement = judged(all);
  CHECK(judgement.job.outcome == Outcome::fail);
  int failed = 0;
  for (const Verdict& verdict : judgement.findings) {
    if (verdict.outcome != Outcome::fail) continue;
    CAPTURE(line_of(verdict));
    CHECK(verdict.name == slow);
    CHECK(verdict.class_);
    CHECK_FALSE(verdict.action.empty());
    ++failed;
  }
  CHECK(failed >= 3);  // products, memory, host link
}

TEST_CASE("a board that is not in the table is judged as its architecture", "[judge]") {
  std::vector<Observation> all;
  for (const auto& [metric, group] : by_metric(recorded().begin()->second))
    if (metric.starts_with("product/") || metric.starts_with("memory/"))
      all.push_back(group.front());
  for (Observation& o : all) {
    o.board = "NVIDIA H777";
    o.pci_device_id = "10de:ffff";
  }
  const Judgement healthy = judged(all);
  for (const Verdict& verdict : healthy.findings) UNSCOPED_INFO(line_of(verdict));
  CHECK(healthy.job.outcome == Outcome::pass);
  for (Observation& o : all)
    for (double& sample : o.samples) sample = slowed(o, sample, 3);
  const Judgement judgement = judged(all);
  CHECK(judgement.job.outcome == Outcome::fail);
  CHECK(std::any_of(judgement.findings.begin(), judgement.findings.end(), [](const Verdict& one) {
    return one.cause.find("NVIDIA H777, judged as sm_90") != std::string::npos;
  }));
}

TEST_CASE("nothing measured is INCONCLUSIVE", "[judge]") {
  const Judgement judgement =
      judge::judge({{}, {}, {"n1"}}, References::embedded(), Limits::embedded(), Boards::embedded(),
                   {"test", {"products", "memory"}});
  CHECK(judgement.job.outcome == Outcome::inconclusive);
  CHECK(judgement.unjudged.size() == 2);
  CHECK(judged({}).job.outcome == Outcome::inconclusive);
}

TEST_CASE("8,000 GPUs are judged in 2 s", "[judge]") {
  std::vector<Observation> all;
  const Groups groups = by_metric(recorded().begin()->second);
  auto group = groups.begin();
  for (int metric = 0; metric < 20; ++metric, ++group) {
    if (group == groups.end()) group = groups.begin();
    for (int gpu = 0; gpu < 8000; ++gpu) {
      all.push_back(group->second.front());
      all.back().conditions["metric"] = std::to_string(metric);
      all.back().of = {Scope::gpu, std::to_string(gpu), {gpu}, {"n" + std::to_string(gpu / 8)}, {},
                       {}};
      all.back().of.uuids = {all.back().of.name};
      all.back().samples.resize(failing_limit(group->first)->samples);
    }
  }
  const double start = cpu_seconds();
  const Judgement judgement = judged(all);
  const double took = cpu_seconds() - start;
  CAPTURE(took);
  CHECK(took < 2);
  CHECK(judgement.nodes.size() == 1000);
}
