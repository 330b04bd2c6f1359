// The judge on healthy fleets and slow GPUs, drawn from the metric lines of results/0.2, and the
// smallest slow-down that it finds in them, which is what a PASS says of itself.
#include "common/judge/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "common/judge/series.hpp"
#include "tests/catch.hpp"

namespace shakedown::judge {
namespace {

using Random = std::mt19937_64;
using Groups = std::map<std::string, std::vector<Observation>>;  // by metric, or by board

/// Metric lines by board, of runs without an injected fault: of each subject, metric and conditions
/// the first.
Groups metric_lines(const std::vector<std::filesystem::path>& files) {
  Groups boards;
  std::set<std::tuple<std::string, std::string, std::map<std::string, std::string>>> known;
  for (const auto& file : files) {
    std::ifstream in(file);
    bool faulty = false;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(R"({"kind":"run")"))
        faulty = Json::parse(line).value("options.inject_fault", "") != "";
      if (faulty || !line.starts_with(R"({"kind":"metric")")) continue;
      Observation o = observation_of(Json::parse(line));
      if (o.backend == "gpu" && o.look == 1 && o.taken == Taken::measured &&
          o.disturbed_by.empty() && known.emplace(o.of.key(), o.metric, o.conditions).second)
        boards[o.board].push_back(std::move(o));
    }
  }
  return boards;
}

const Groups& recorded() {
  static const Groups boards = [] {
    std::vector<std::filesystem::path> files;
    for (const char* folder : {"results/0.2/h100", "results/0.2/h200"})
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    Groups all = metric_lines(files);
    if (all.empty()) throw std::runtime_error("no metric lines in results/0.2");
    return all;
  }();
  return boards;
}

/// Null where it fails nothing.
const Limit* failing_limit(const std::string& metric) {
  const Limit* limit = Limits::embedded().find(metric);
  return limit == nullptr || limit->warns || limit->rates.empty() ? nullptr : limit;
}

/// Peers: of each metric those under the conditions that most subjects have, of these the largest.
Groups by_metric(const std::vector<Observation>& all) {
  std::map<std::string, Groups> groups;
  for (const Observation& o : all) {
    const Limit* limit = failing_limit(o.metric);
    if (limit == nullptr || o.samples.size() < limit->samples) continue;
    std::string key = o.path_class;
    for (const auto& [name, value] : o.conditions)
      key += fmt::format(" {}={:>12}", name, value);  // numbers in their order
    groups[o.metric][key].push_back(o);
  }
  Groups chosen;
  for (const auto& [metric, of_metric] : groups)
    for (const auto& [key, group] : of_metric)
      if (group.size() >= chosen[metric].size()) chosen[metric] = group;
  return chosen;
}

Judgement judged(const std::vector<Observation>& observations,
                 const References& references = References::embedded()) {
  return judge::judge({observations, {}, {}}, references, Limits::embedded(), Boards::embedded(),
                      {"test", {}});
}

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

/// What a further look would have: its samples drawn anew, `r` slower.
Observation look_at(const Observation& o, int look, double r, Random& random) {
  Observation drawn = o;
  drawn.look = look;
  std::uniform_int_distribution<std::size_t> any(0, o.samples.size() - 1);
  for (double& sample : drawn.samples) sample = slowed(o, o.samples[any(random)], r);
  return drawn;
}

/// Whether the last of the group does not pass, if it is `r` slower in each look. Of two whose
/// usual value nothing shows, neither passes.
bool is_found(const std::vector<Observation>& group, double r, Random& random) {
  std::vector<Observation> all;
  const int looks = 1 + failing_limit(group.back().metric)->looks;
  for (const Observation& o : group)
    for (int look = 1; look <= looks; ++look)
      all.push_back(look_at(o, look, &o == &group.back() ? r : 0, random));
  const Judgement judgement = judged(all);
  return std::any_of(judgement.judged.begin(), judgement.judged.end(), [&](const Judged& one) {
    return all[one.observation].of.name == group.back().of.name &&
           one.outcome >= Outcome::inconclusive;
  });
}

/// Of 100 draws of the looks, always the same ones.
bool is_found_in_95(const std::vector<Observation>& group, double r) {
  int missed = 0;
  for (std::uint64_t draw = 0; draw < 100 && missed <= 5; ++draw) {
    Random random(draw);
    missed += is_found(group, r, random) ? 0 : 1;
  }
  return missed <= 5;
}

/// The smallest slow-down that is, looked for around `said`, to a 128th of it.
double smallest_found(const std::vector<Observation>& group, double said) {
  double low = 0.4 * said, high = 1.4 * said;
  for (int halved = 0; halved < 7; ++halved) {
    const double middle = (low + high) / 2;
    (is_found_in_95(group, middle) ? high : low) = middle;
  }
  return high;
}

/// How much slower than usual the last of a group is as recorded, by what it is compared with; of a
/// time that follows the clock, at the same clock.
double own_slowness(const std::vector<Observation>& group, Witness witness) {
  const Observation& last = group.back();
  const auto value = [&](const Observation& o) {
    const double clock = o.metric.starts_with("train/") ? o.seen.clock_mhz : kUnknown;
    return statistic_of(o.samples, failing_limit(o.metric)->statistic, o.less_is_better()) *
           (std::isfinite(clock) ? clock : 1);
  };
  if (witness == Witness::reference) {
    const ReferenceFigure& figure = *References::embedded().find(last);
    const bool at_clock = last.metric.starts_with("train/") && std::isfinite(last.seen.clock_mhz);
    return slower_by(last, value(last), figure.value * (at_clock ? figure.clock_mhz : 1));
  }
  std::vector<double> values;
  for (const Observation& o : group)
    if (&o != &last) values.push_back(value(o));
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  if (!last.less_is_better()) std::reverse(values.begin(), values.end());
  return slower_by(last, value(last),
                   values[((values.size() + 1) / 2 - 1) / 2]);  // the faster half
}

/// Of the last unit of a group, in shares of time.
struct Row {
  std::string board, metric;
  Witness witness = Witness::none;
  double own = 0;    // it is slower than usual
  double says = 0;   // a PASS: what is found in 99 of 100 units
  double found = 0;  // what is, in 95 of 100 looks at this one
};

const std::vector<Row>& rows() {
  static const std::vector<Row> made = [] {
    std::vector<Row> all;
    for (const auto& [board, observations] : recorded())
      for (const auto& [metric, group] : by_metric(observations)) {
        const Judgement judgement = judged(group);
        if (judgement.would_have_found.empty()) continue;
        const Found& says = judgement.would_have_found.front();
        all.push_back({board, metric, says.witness, own_slowness(group, says.witness),
                       says.slow_down, smallest_found(group, says.slow_down)});
      }
    return all;
  }();
  return made;
}

std::string table() {
  std::string text =
      "| metric | of | compared with | a PASS says | found in 95 of 100 |\n|---|---|---|---|---|\n";
  for (const Row& row : rows()) {
    std::string witness = name_of(row.witness);
    std::replace(witness.begin(), witness.end(), '_', ' ');
    text += fmt::format("| `{}` | {} | {} | {:.1f} % | {:.1f} % |\n", row.metric, row.board,
                        witness, std::ceil(1e3 * row.says - 1e-9) / 10, 100 * row.found);
  }
  return text;
}

}  // namespace

// The judge on healthy fleets and slow GPUs, drawn from records of real ones.

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
  Random random(13);
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

TEST_CASE("judging 8,000 GPUs takes as long per GPU as judging 1,000", "[judge]") {
  const Groups groups = by_metric(recorded().begin()->second);
  const auto seconds_of = [&](int gpus) {
    std::vector<Observation> all;
    auto group = groups.begin();
    for (int metric = 0; metric < 20; ++metric, ++group) {
      if (group == groups.end()) group = groups.begin();
      for (int gpu = 0; gpu < gpus; ++gpu) {
        all.push_back(group->second.front());
        all.back().conditions["metric"] = std::to_string(metric);
        all.back().of = {
            Scope::gpu, std::to_string(gpu), {gpu}, {"n" + std::to_string(gpu / 8)}, {}, {}};
        all.back().of.uuids = {all.back().of.name};
        all.back().samples.resize(failing_limit(group->first)->samples);
      }
    }
    const double start = cpu_seconds();
    const Judgement judgement = judged(all);
    CHECK(judgement.nodes.size() == static_cast<std::size_t>(gpus) / 8);
    return cpu_seconds() - start;
  };
  const double of_1000 = seconds_of(1000), of_8000 = seconds_of(8000);
  CAPTURE(of_1000, of_8000);
  CHECK(of_8000 < 3 * 8 * of_1000);  // were it quadratic: 8 times that
  CHECK(of_8000 < 60);               // launch/acceptance waits 5 min for it
}

// The smallest slow-down that the judge finds in records of real GPUs, which is what a PASS says of
// itself.

TEST_CASE("what is found is what a PASS says", "[judge][judge-table]") {
  REQUIRE(rows().size() > 15);
  for (const Row& row : rows()) {
    CAPTURE(row.board, row.metric, row.says, row.found, row.own);
    CHECK((1 + row.found) * (1 + row.own) - 1 <= row.says * (1 + 1.0 / 128) + 0.003);
    CHECK(row.found > failing_limit(row.metric)->floor / 2);
  }
}

TEST_CASE("a peer's own noise in one look hides no slow GPU", "[judge]") {
  const Observation good = by_metric(recorded().rbegin()->second).at("memory/copy").front();
  std::vector<Observation> all;
  const auto add = [&](const std::string& gpu, int look, double r) {
    all.push_back(good);
    all.back().of.name = all.back().of.uuids.front() = gpu;
    all.back().look = look;
    for (double& sample : all.back().samples) sample = slowed(good, sample, r);
  };
  for (int look = 1; look <= 4; ++look) {
    add("GPU-a", look, look == 2 ? 0.05 : 0);  // other work
    add("GPU-b", look, 0.06);
  }
  const Judgement judgement = judged(all);
  REQUIRE(judgement.findings.size() == 1);
  CHECK(judgement.findings.front().outcome == Outcome::fail);
  CHECK(judgement.findings.front().name == "GPU-b");
}

TEST_CASE("docs/judge.md has the table of what is found", "[judge][judge-table]") {
  constexpr const char* kPage = "docs/judge.md";
  std::ifstream in(kPage);
  const std::string page(std::istreambuf_iterator<char>(in), {});
  const std::string begins = "<!-- found -->\n";
  const std::size_t begin = page.find(begins), end = page.find("<!-- end -->", begin);
  REQUIRE(end != std::string::npos);
  const std::string renewed = page.substr(0, begin + begins.size()) + table() + page.substr(end);
  if (std::getenv("SHAKEDOWN_WRITE") != nullptr) {
    std::ofstream(kPage) << renewed;
    return;
  }
  INFO("make docs renews it");
  CHECK(page == renewed);
}

}  // namespace shakedown::judge
