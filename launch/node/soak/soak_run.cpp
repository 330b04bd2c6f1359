#include "launch/node/soak/soak_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "common/error.hpp"
#include "common/identity.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "launch/node/compute/results.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/findings.hpp"
#include "launch/node/soak/window.hpp"

namespace shakedown::node {
namespace {

/// Those that are found: of the loads that run; a rank alone has no other hash of the same bytes.
std::vector<FaultKind> faults_of(const std::vector<Phase>& cycle, int ranks) {
  const auto runs = [&](LoadKind load) { return any_has(cycle, load); };
  std::vector<FaultKind> faults;
  if (runs(LoadKind::products) || runs(LoadKind::probes)) faults.push_back(FaultKind::product);
  if (runs(LoadKind::products) || runs(LoadKind::memory)) faults.push_back(FaultKind::memory);
  if (runs(LoadKind::copies)) faults.push_back(FaultKind::copy);
  if (runs(LoadKind::products)) faults.push_back(FaultKind::slow);
  if (runs(LoadKind::products) && ranks > 1) faults.push_back(FaultKind::hash);
  if (runs(LoadKind::collectives)) faults.push_back(FaultKind::collective);
  return faults;
}

constexpr int kGpuSize = 8192;
constexpr int kCpuSize = 256;

/// Share of --minutes for which memory is tested alone afterwards, until each pattern has covered
/// it.
constexpr double kMoreForMemory = 0.5;

/// Cycles from one that times a type's products alone to the next: six of them per soak.
int timed_every(double total_s, double cycle_s) {
  return std::max(1, static_cast<int>(total_s / 6 / std::max(cycle_s, 1e-3)));
}

/// Memory is left alone for as long: a share of the soak that its patterns have time for.
double retention_seconds(double total_s) { return std::min(10.0, total_s / 80); }

std::vector<RankIdentity> identify(const MpiSession& session, const Backend& backend) {
  const DeviceIdentity device = backend.device->identity();
  const auto uuids = session.all_gather(device.uuid);
  const auto models = session.all_gather(device.model);
  std::vector<RankIdentity> ranks;
  for (std::size_t r = 0; r < uuids.size(); ++r)
    ranks.push_back({session.hosts()[r], uuids[r], "", models[r]});
  return ranks;
}

/// The ranks whose devices are of this rank's model: their bits can be compared.
std::unique_ptr<MpiSession> split_by_model(const MpiSession& session,
                                           const std::vector<RankIdentity>& ranks) {
  const std::string& mine = ranks[static_cast<std::size_t>(session.rank())].model;
  const auto first = std::find_if(ranks.begin(), ranks.end(),
                                  [&](const RankIdentity& rank) { return rank.model == mine; });
  return session.split(static_cast<int>(first - ranks.begin()));
}

/// The value of --loads that has a load: "probes" for "probe", "products" for "product fp32".
std::string loads_with(const std::string& of) {
  const std::string load = of.substr(0, of.find(' '));
  for (const LoadKind kind : kLoads) {
    const std::string name = name_of(kind);
    if (name == load || name == load + "s" || (load == "copy" && kind == LoadKind::copies))
      return name;
  }
  return load;
}

class SoakRun {
 public:
  SoakRun(const SoakOptions& options, const std::vector<NodeReport>& before, Backend& backend,
          MpiSession& session, Record& record)
      : options_(options),
        before_(before),
        backend_(backend),
        session_(session),
        record_(record),
        size_(options.size > 0                   ? options.size
              : backend.kind == BackendKind::gpu ? kGpuSize
                                                 : kCpuSize),
        ranks_(identify(session, backend)),
        jurors_(split_by_model(session, ranks_)),
        nvml_(backend.kind == BackendKind::gpu ? Nvml::open() : nullptr),
        kernel_(backend.device->identity().pci_id),
        identity_{{"backend", name_of(backend.kind)}, {"world_size", session.world_size()}} {
    if (session.is_root()) court_.emplace(options.judge);
    const TypeChoice choice =
        choose_types(soaked(all_product_types()), options.types, *backend.device, session);
    types_ = choice.types;
    say(session, choice.remark);
    check_loads_run(phases(0));
    const int ranks = session.world_size();
    if (const auto fault = parse_fault(options.fault, faults_of(phases(0), ranks), ranks)) {
      say(session, line_of(*fault));
      if (fault->rank == session.rank()) fault_ = fault->kind;
    }
    const std::string& uuid = ranks_[static_cast<std::size_t>(session.rank())].uuid;
    health_ = std::make_unique<GpuHealth>(nvml_ ? nvml_->gpu_of(uuid) : uuid);
    const auto serials = session.all_gather(health_->serial());
    for (std::size_t r = 0; r < serials.size(); ++r) ranks_[r].serial = serials[r];
  }

  ExitCode run() {
    const std::vector<Phase> first = phases(0);
    window_s_ = window_seconds(60 * options_.minutes, first);
    WorkSettings settings;
    settings.phases = first;
    for (int cycle = 1; cycle < static_cast<int>(types_.size()); ++cycle)
      for (const Phase& phase : phases(cycle)) settings.phases.push_back(phase);
    settings.size = size_;
    settings.load.seed = static_cast<std::uint64_t>(options_.seed);
    settings.load.fault = fault_;
    settings.retention_s = retention_seconds(60 * options_.minutes);
    settings.load.stopped = [this] { return !signals_.received().empty(); };
    say(session_, fmt::format("soak: {}, {:g} minutes, products of {} in {}, windows of {:.3g} s",
                              counted(session_.world_size(), "rank"), options_.minutes,
                              settings.size, fmt::join(names_of(types_), " "), window_s_));
    SoakWork work(settings, backend_, *jurors_);
    try {
      run_windows(work);
    } catch (const Error& error) {
      const auto wrong = std::find_if(incidents_.begin(), incidents_.end(), [](const Incident& i) {
        return i.mismatch.outcome == Outcome::fail;
      });
      if (wrong == incidents_.end()) throw;
      throw FailError(fmt::format("{}; before that rank {} was wrong: {} {}: {}", error.what(),
                                  wrong->rank, wrong->mismatch.load, wrong->mismatch.where,
                                  wrong->mismatch.cause));
    }
    return conclude(work);
  }

 private:
  std::vector<Phase> phases(int cycle) const {
    auto cycle_phases =
        phases_of_cycle(options_.shapes, options_.loads, types_, session_.world_size() == 1, cycle);
    if (window_s_ > 0) fit_pulses(cycle_phases, window_s_);
    return cycle_phases;
  }

  double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  /// Throws UsageError where there is no phase, or a load that --loads names is in none. All of
  /// them are the default.
  void check_loads_run(const std::vector<Phase>& cycle) const {
    if (cycle.empty())
      throw UsageError(fmt::format("--loads {} with --shape {}: no work for {}",
                                   fmt::join(options_.loads, ","), fmt::join(options_.shapes, ","),
                                   counted(session_.world_size(), "rank")));
    if (options_.loads.size() == kLoadKinds) return;
    for (const LoadKind kind : kLoads) {
      const bool named =
          std::count(options_.loads.begin(), options_.loads.end(), name_of(kind)) > 0;
      if (named && !any_has(cycle, kind))
        throw UsageError(fmt::format("--loads {}: never runs with --shape {} on {}", name_of(kind),
                                     fmt::join(options_.shapes, ","),
                                     counted(session_.world_size(), "rank")));
    }
  }

  void run_windows(SoakWork& work) {
    start_ = std::chrono::steady_clock::now();
    run_cycles(work);
    // A memory that is slow for the time.
    const Phase memory{Shape::steady, {LoadKind::memory}, {}, 0};
    double more_s = kMoreForMemory * 60 * options_.minutes;
    while (more_s > 0) {
      const std::vector<RankWindow>& last = windows_.back().ranks;
      if (std::ranges::any_of(last, &RankWindow::stop) ||
          std::ranges::all_of(last, &RankWindow::memory_covered))
        return;
      windows_.push_back(run_window(work, memory, {}));
      more_s -= windows_.back().seconds();
    }
  }

  /// Until the time is over, or a signal comes.
  void run_cycles(SoakWork& work) {
    const double total_s = 60 * options_.minutes;
    Progress progress("soak", std::lround(std::ceil(total_s)), "s", session_.is_root());
    double cycle_s = 0;
    for (const Phase& phase : phases(1)) cycle_s += phase.share * window_s_;
    const int timed = timed_every(total_s, cycle_s);
    double wrong = 0;
    for (int cycle = 0;; ++cycle) {
      const std::vector<Phase> list = phases(cycle);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Window window = run_window(work, list[i], {cycle % timed == 0, cycle == 0});
        windows_.push_back(window);
        wrong += window.wrong();
        progress.update(std::lround(std::min(elapsed_s(), total_s)),
                        fmt::format("{}; {:.0f} wrong", window.phase, wrong));
        const bool stop = std::any_of(window.ranks.begin(), window.ranks.end(),
                                      [](const RankWindow& rank) { return rank.stop; });
        // Each phase comes once, whatever time is left, unless one has found what fails. Rank 0's
        // clock decides for all.
        const bool covered = cycle > 0 || i + 1 == list.size() || has_failed();
        if (stop || (covered && window.ranks.front().over)) return;
      }
    }
  }

  Window run_window(SoakWork& work, const Phase& phase, SoakWork::Rates rates) {
    GpuSampler sampler(health_->stalled().empty() ? nvml_ : nullptr,
                       backend_.device->identity().uuid);
    PhaseResult result = work.run(phase, window_s_, rates);
    RankWindow& mine = result.window;
    mine.add_health(sampler.finish());
    mine.errors = health_->delta();
    mine.stop = !signals_.received().empty();
    mine.memory_covered = work.tested().memory.is_whole();
    mine.over = elapsed_s() >= 60 * options_.minutes;
    Window window{
        static_cast<int>(windows_.size()), phase.name(), {}, session_.all_gather(mine), {}};
    if (backend_.kind == BackendKind::gpu)
      window.kernel_events = gather(session_, kernel_.events());
    if (phase.has(LoadKind::products)) window.products = product_spec(*phase.type, size_);
    window.operands = result.operands;
    if (phase.shape == Shape::steady && phase.has(LoadKind::products)) {
      window.steady_products = phase.type;
      rates_[*phase.type].add(result.rates);
    }
    record_.write("soak", merged(merged(identity_, {{"size", size_}}), record_of(window)));
    collect(window, std::move(result.found));
    return window;
  }

  bool has_failed() const {
    return std::ranges::any_of(incidents_, [](const Incident& incident) {
      return incident.mismatch.outcome == Outcome::fail;
    });
  }

  void collect(const Window& window, std::vector<Mismatch> found) {
    const auto by_rank = gather(session_, found);
    for (std::size_t r = 0; r < by_rank.size(); ++r) {
      for (const Mismatch& mismatch : by_rank[r]) {
        Incident incident{static_cast<int>(r), window.index, mismatch, ""};
        incident.temperature_c = window.ranks[r].temperature_c;
        incident.sm_clock_mhz = window.ranks[r].sm_clock_mhz;
        incident.power_w = window.ranks[r].power_w;
        keep_capsule(incident);
        record_.write("mismatch", merged(identity_, record_of(incident, ranks_[r])));
        incidents_.push_back(incident);
      }
    }
  }

  void keep_capsule(Incident& incident) {
    constexpr std::ptrdiff_t kMostCapsules = 20;
    const Mismatch& mismatch = incident.mismatch;
    if (mismatch.replay.empty()) {
      incident.no_capsule = fmt::format(
          "a capsule has a product; bin/soak --loads {} --seed {} on the "
          "same GPUs repeats this",
          loads_with(mismatch.load), options_.seed);
      return;
    }
    const auto kept = std::count_if(incidents_.begin(), incidents_.end(),
                                    [](const Incident& i) { return !i.mismatch.replay.empty(); });
    if (kept >= kMostCapsules) {
      incident.no_capsule = fmt::format("there are {} of this run already", kept);
      return;
    }
    if (!session_.is_root()) return;
    std::string time = utc_now();
    std::erase_if(time,
                  [](char c) { return c == '-' || c == ':'; });  // scp reads a colon as a host
    const std::string name = fmt::format("{}-rank{}-{}", time, incident.rank, incidents_.size());
    Json capsule = Json::parse(mismatch.replay);
    const RankIdentity& rank = ranks_[static_cast<std::size_t>(incident.rank)];
    Json& circumstances = capsule["circumstances"] = record_of(incident, rank);
    circumstances["model"] = rank.model;
    for (const LibraryVersion& version : library_versions(backend_.kind))
      circumstances["versions." + version.name] = version.running;
    try {
      incident.capsule = write_capsule(options_.output, name, capsule);
    } catch (const Error& error) {  // the mismatch matters more than its capsule
      say(session_, fmt::format("no capsule: {}", error.what()));
      incident.no_capsule = error.what();
    }
  }

  /// Recorded. Collective; complete on rank 0.
  judge::Evidence evidence_of_rates(const SoakWork& work) {
    std::vector<SoakedProduct> products;
    for (const auto& [type, rates] : rates_)
      products.push_back({product_spec(type, size_), work.algorithm_of(type), rates});
    const std::vector<Unit> units = units_of(session_, backend_);
    const Measured measured = gather(
        session_, units, series_of(products, windows_, incidents_, session_.rank(), backend_.kind),
        1, before_);
    judge::Evidence evidence{measured.observations, {}, {}};
    for (const judge::Observation& one : evidence.observations)
      record_.write("metric", judge::record_of(one));
    return evidence;
  }

  ExitCode conclude(const SoakWork& work) {
    const auto stalls = session_.all_gather(fmt::format("{}", fmt::join(health_->stalled(), ", ")));
    const auto pending = session_.all_gather(health_->remap_pending() ? 1.0 : 0.0);
    const auto lacking = session_.all_gather(health_->lacks_ecc() ? 1.0 : 0.0);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].stalled = stalls[r];
      ranks_[r].remap_pending = pending[r] > 0;
      ranks_[r].lacks_ecc = lacking[r] > 0;
    }
    std::set<LoadKind> requested;
    for (const Phase& phase : phases(0)) requested.insert(phase.loads.begin(), phase.loads.end());
    const auto signals = session_.all_gather(signals_.received());
    const std::string signal = *std::max_element(signals.begin(), signals.end());
    const auto tested = session_.all_gather(work.tested());
    std::vector<MemoryCoverage> memory;
    for (const Tested& of_rank : tested) memory.push_back(of_rank.memory);
    std::vector<Power> powers;
    for (std::size_t r = 0; r < tested.size(); ++r)
      powers.push_back(power_of(checked_by(r, windows_, tested[r], types_)));
    const Power power = least_of(powers);
    const bool on_gpus = backend_.kind == BackendKind::gpu;
    JobFacts facts{{requested.begin(), requested.end()},
                   memory,
                   unknown_health(windows_, ranks_),
                   signal,
                   ranks_.front().uuid.empty() ? "rank" : "GPU",
                   elapsed_s() / 60,
                   options_.minutes,
                   line_of(power, on_gpus ? "SM" : "core", ranks_.size())};
    facts.remarks.push_back(work.unturned());
    std::vector<Verdict> verdicts = judge_soak(windows_, incidents_, ranks_);
    const Outcome without_rates = judge_job(windows_, verdicts, facts).outcome;
    if (const judge::Evidence rates = evidence_of_rates(work); !rates.observations.empty()) {
      const judge::Judgement judgement = court_->judge(rates, {"soak", {}});
      verdicts.insert(verdicts.end(), judgement.findings.begin(), judgement.findings.end());
      facts.remarks.insert(facts.remarks.begin(),
                           backend_.kind == BackendKind::cpu
                               ? "correctness only"
                               : judge::sentence_of(judgement.would_have_found));
    }
    verdicts.push_back(judge_job(windows_, verdicts, facts));
    // The judge concludes anew what rates alone decide.
    if (without_rates == Outcome::pass && verdicts.back().outcome != Outcome::pass)
      verdicts.back().check = "rates";
    double in_windows_s = 0;
    for (const Window& window : windows_) in_windows_s += window.seconds();
    const double between_s =
        (60 * facts.minutes - in_windows_s) / static_cast<double>(windows_.size());
    record_.write("soak_summary",
                  merged(merged(identity_, summary_of(windows_, tested)),
                         merged(record_of(power), {{"would_have_found", facts.power},
                                                   {"between_windows_s", between_s}})));
    for (const Verdict& verdict : verdicts) {
      record_.write("verdict", merged(identity_, shakedown::record_of(verdict)));
      say(session_, line_of(verdict));
    }
    const auto of_root = session_.all_gather(static_cast<double>(worst(verdicts))).front();
    const auto code = static_cast<ExitCode>(static_cast<int>(of_root));
    return signal.empty() || code == ExitCode::fail ? code : ExitCode::stopped;
  }

  const SoakOptions& options_;
  const std::vector<NodeReport>& before_;
  Backend& backend_;
  MpiSession& session_;
  Record& record_;
  std::int64_t size_;  // m and n of the products
  StopSignals signals_;
  std::optional<FaultKind> fault_;  // of this rank
  std::vector<ProductType> types_;
  std::vector<RankIdentity> ranks_;
  std::unique_ptr<MpiSession> jurors_;
  std::shared_ptr<Nvml> nvml_;
  std::unique_ptr<GpuHealth> health_;
  KernelWatch kernel_;
  Json identity_;  // of every record
  double window_s_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::optional<judge::Court> court_;          // on rank 0
  std::map<ProductType, ProductRates> rates_;  // of this rank's steady products
  std::vector<Window> windows_;
  std::vector<Incident> incidents_;
};

}  // namespace

ExitCode run_soak(const SoakOptions& options, const std::vector<NodeReport>& before,
                  Backend& backend, MpiSession& session, Record& record) {
  return SoakRun(options, before, backend, session, record).run();
}

void declare_options(OptionSet& options, SoakOptions& values) {
  options.heading("Soak");
  options.add("--minutes", values.minutes, "duration, fractions allowed")
      .at_least(0.001)
      .at_most(1e6)
      .idle_with({"--replay"});
  options.add("--types", values.types, "types of the products; all: those that the devices have")
      .one_of(names_of(soaked(all_product_types())))
      .idle_with({"--replay"});
  options.add("--loads", values.loads, "kinds of work")
      .one_of(names_of(kLoads))
      .idle_with({"--replay"});
  options
      .add("--shape", values.shapes,
           "sweep: each load alone, first of all and briefly; steady: each load alone; square: "
           "products on and off at 0.5 to 10 Hz; mixed: all loads at the same time")
      .one_of(names_of(kShapes))
      .idle_with({"--replay"});
  options
      .add("--size", values.size,
           fmt::format(
               "m and n of the products, a multiple of {}; k is the same, in fp8 twice and in "
               "int8 four times as large",
               kTileEdge))
      .at_least(kTileEdge)
      .at_most(8192)  // integers must be exact in every type
      .default_text(fmt::format("{} on gpu, {} on cpu", kGpuSize, kCpuSize))
      .idle_with({"--replay"});
  options.add("--seed", values.seed, "seed of all data").at_least(0).idle_with({"--replay"});
  options.add("--output", values.output, "folder for the capsules of what was wrong")
      .metavar("DIR")
      .idle_with({"--replay"});
  options.add("--record", values.record, ".jsonl file to which the results are appended")
      .metavar("FILE");
  options.heading("Replay");
  options.add("--replay", values.replay, "capsule whose product is repeated instead of a soak")
      .existing_file("bin/soak writes one to --output where a product is wrong")
      .metavar("FILE");
  options.add("--repeats", values.repeats, "products of a replay")
      .at_least(1)
      .only_with({"--replay"});
  declare_options(options, values.backend);
  options.heading("Verdict");
  declare_options(options, values.judge);
  declare_fault_option(options, values.fault);
  options.check([&] {
    if (values.size % kTileEdge != 0)
      throw UsageError(fmt::format("--size {}: must be a multiple of {}", values.size, kTileEdge));
  });
}

ProductSpec product_spec(ProductType type, std::int64_t size) {
  const auto ratio = size_of(result_type(type)) / size_of(operand_type(type));
  return {type, size, size, size * static_cast<std::int64_t>(ratio)};
}

}  // namespace shakedown::node
