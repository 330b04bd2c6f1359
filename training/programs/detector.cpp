#include "training/programs/detector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/error.hpp"
#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "resnet/tensor_file.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kCheck = "--check-neighbour";
constexpr auto kSlowStep = std::chrono::milliseconds(50);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_fault(const DetectorOptions& options, const Fault& fault, const Engine& engine) {
  if (fault.kind == FaultKind::slow) return;
  if (options.check_neighbour == 0)
    throw UsageError(fmt::format("--inject-fault {}: only {} finds it", options.fault, kCheck));
  if (!engine.step.strategy_entry().computes(fault.rank))
    throw UsageError(fmt::format("--inject-fault {}: with --strategy {} rank {} does not compute",
                                 options.fault, engine.step.strategy_entry().name, fault.rank));
}

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

Json json_of(const Dispute& dispute, const Names& names) {
  const auto rank = [&](int voter) { return names.ranks[static_cast<std::size_t>(voter)]; };
  Json fields{{"batch_of_rank", rank(dispute.batch)}};
  for (int voter : dispute.voters) fields["computed_by_ranks"].push_back(rank(voter));
  if (dispute.wrong) {
    fields["wrong_rank"] = rank(*dispute.wrong);
    fields["second_computation"] = name_of(dispute.second);
  }
  const Hashes& found = dispute.votes[dispute.accused()];
  const Hashes& expected = dispute.votes[(dispute.accused() + 1) % dispute.votes.size()];
  for (std::size_t p : dispute.parameters)
    fields["gradients"].push_back({{"tensor", names.parameters[p]},
                                   {"expected", hex(expected[p])},
                                   {"found", hex(found[p])}});
  return fields;
}

}  // namespace

void declare_options(OptionSet& options, DetectorOptions& values) {
  const std::vector<std::string> others{"--evaluate", "--layers", "--loader-only", "--describe"};
  options.heading("Checks");
  options
      .add("--check-neighbour", values.check_neighbour,
           "before every K-th update, each rank computes the gradients of its own and of its "
           "neighbour's batch, outside of the update, and both ranks' results must have the same "
           "bits; where they differ, a third rank decides which GPU is wrong. Costs two more "
           "forward and backward passes every K updates: about 2/K of the time")
      .at_least(1)
      .only_with({"--deterministic"})
      .not_with(others)
      .metavar("K")
      .default_text("off");
  options
      .add("--output", values.output,
           "folder of capsule-train-*.json, which keeps a step whose gradients differ")
      .only_with({kCheck})
      .metavar("DIR")
      .default_text("current folder");
  declare_fault_option(options, values.fault).not_with(others);
}

Detector::Detector(const Run& run)
    : run_(run),
      options_(run.options.detector),
      engine_(run.engine),
      fault_(parse_fault(options_.fault, {FaultKind::product, FaultKind::hash, FaultKind::slow},
                         run.session.world_size())) {
  if (fault_) {
    check_fault(options_, *fault_, engine_);
    say(run_.session, line_of(*fault_));
  }
  if (options_.check_neighbour == 0) return;
  if (run.session.is_root()) check_writable({"--output", options_.output + "/capsule-train.json"});
  check_.emplace(engine_, fault_);
}

Detector::~Detector() { engine_.step.before_update(nullptr); }

void Detector::start(long updates_per_epoch) {
  updates_per_epoch_ = updates_per_epoch;
  started_ = std::chrono::steady_clock::now();
  if (check_ || fault_) engine_.step.before_update([this] { before_update(); });
}

void Detector::delay() const {
  if (fault_ && fault_->kind == FaultKind::slow && fault_->rank == run_.session.rank())
    std::this_thread::sleep_for(kSlowStep);
}

void Detector::before_update() {
  delay();
  if (check_ && updates_++ % options_.check_neighbour == 0) check();
}

void Detector::check() {
  engine_.finish();  // not the check's time
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Dispute> disputes = check_->disputes();
  check_s_ += seconds_since(start);
  ++checked_;
  if (!disputes.empty()) conclude(disputes);
}

ExitCode Detector::finish() {
  engine_.step.before_update(nullptr);
  if (!check_) return ExitCode::pass;
  engine_.finish();
  Verdict verdict{Scope::job, "gradients", Outcome::pass, ""};
  if (checked_ == 0) {
    verdict.outcome = Outcome::inconclusive;
    verdict.cause = "no update was checked";
  } else {
    const double rest = seconds_since(started_) - check_s_;
    verdict.cause = fmt::format(
        "checked before {} of {} updates on {} ranks, each batch computed on two: the same bits; "
        "{:.1f} ms per "
        "check, {:.1f} % on top of the rest",
        checked_, updates_, engine_.step.ranks_computing(), 1e3 * check_s_ / checked_,
        100 * check_s_ / rest);
  }
  record_check(0, "");
  conclude_with(verdict);
  return exit_code_of(verdict.outcome);
}

void Detector::conclude(const std::vector<Dispute>& disputes) {
  const Names names = check_->names();
  const std::string capsule = keep_step(disputes, names);
  record_check(disputes.size(), capsule);
  const std::vector<Verdict> verdicts = verdicts_of(disputes, names);
  for (const Verdict& verdict : verdicts) conclude_with(verdict);
  if (!capsule.empty()) say(run_.session, "the step is kept in " + capsule);
  run_.session.barrier();  // rank 0 has written all
  const std::string what = fmt::format(
      "{} {}: ranks computed different gradients from the same batch; the update was not applied",
      kCheck, options_.check_neighbour);
  if (worst(verdicts) == ExitCode::fail) throw FailError(what);
  throw InconclusiveError(what);
}

Json Detector::described_step(const Names& names) {
  const StepScalars scalars = engine_.model.read_scalars();
  const long update = static_cast<long>(scalars.updates) + scalars.skipped;
  Json step{{"update", update}};
  if (updates_per_epoch_ > 0) {
    step["epoch"] = update / updates_per_epoch_ + 1;
    step["update_of_epoch"] = update % updates_per_epoch_;
  }
  step["seed"] = engine_.settings().seed;
  step["loss_scale"] = scalars.loss_scale;
  step["learning_rate"] = scalars.learning_rate;
  step["ranks_computing"] = names.ranks;
  const bool gpu = engine_.device().kind() == BackendKind::gpu;
  const auto nvml = gpu ? Nvml::open() : nullptr;
  const GpuSample sample = nvml ? nvml->sample(engine_.device().identity().uuid) : GpuSample();
  step["sm_clock_mhz"] = run_.session.all_gather(sample.sm_clock_mhz);
  step["temperature_c"] = run_.session.all_gather(sample.temperature_c);
  step["power_w"] = run_.session.all_gather(sample.power_w);
  return step;
}

std::string Detector::keep_step(const std::vector<Dispute>& disputes, const Names& names) {
  Json capsule{{"capsule", "train"}, {"found", utc_now()}, {"step", described_step(names)}};
  for (const Dispute& dispute : disputes) capsule["disputes"].push_back(json_of(dispute, names));
  capsule["run"] = describe_run(*run_.set, run_.session, engine_.backend);
  const std::vector<Tensor> weights = engine_.model.state();
  if (!run_.session.is_root()) return "";

  std::string time = utc_now();
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  const std::string stem =
      fmt::format("capsule-train-{}-update{}", time, capsule["step"]["update"].get<long>());
  const std::filesystem::path path = std::filesystem::path(options_.output) / stem;
  capsule["weights"] = stem + ".safetensors";  // before the step
  try {
    write_safetensors({"--output", path.string() + ".safetensors"}, weights);
    write_file({"--output", path.string() + ".json"},
               [&](std::ostream& out) { out << json_text(capsule, 2) << "\n"; });
  } catch (const Error& error) {  // the verdict matters more
    std::fprintf(stderr, "error: %s\n", error.what());
    return "";
  }
  return path.string() + ".json";
}

void Detector::record_check(std::size_t disputes, const std::string& capsule) {
  const double rest = seconds_since(started_) - check_s_;
  Json fields{{"check_every", options_.check_neighbour},
              {"updates", updates_},
              {"updates_checked", checked_},
              {"ranks_computing", engine_.step.ranks_computing()},
              {"disputes", disputes}};
  if (checked_ > 0) {
    fields["check_ms"] = 1e3 * check_s_ / checked_;
    fields["overhead_percent"] = 100 * check_s_ / rest;
  }
  if (!capsule.empty()) fields["capsule"] = capsule;
  run_.write("neighbour_check", fields);
}

void Detector::conclude_with(const Verdict& verdict) {
  say(run_.session, line_of(verdict));
  run_.record.write("verdict", record_of(verdict));
}

}  // namespace shakedown::training
