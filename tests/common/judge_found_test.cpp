// The smallest slow-down that the judge finds in records of real GPUs, which is what a PASS says of
// itself.
#include <cmath>
#include <cstdlib>

#include "tests/catch.hpp"
#include "tests/common/judge_records.hpp"

using namespace shakedown;
using namespace shakedown::judge;

namespace {

using judge::Random;  // not shakedown::Random

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
