// The throughput run: warm-up, then N timed steps.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/statistics.hpp"
#include "training/data/batches.hpp"
#include "training/measure/breakdown.hpp"
#include "training/measure/certificate.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct TimingOptions {
  int iterations = 100;
  int warmup = 20;             // steps at least
  double warmup_seconds = -1;  // at least, after the first step; -1: the backend's
};
void declare_options(OptionSet& options, TimingOptions& values);
/// With the backend's default resolved.
double warmup_seconds_of(const TimingOptions& options, BackendKind kind);

/// How many more steps bring `elapsed_s`, which `steps` took, to `seconds`; 1 where no step was
/// timed.
double steps_to_fill(double seconds, double elapsed_s, long steps);

/// Bytes that each rank sends per step.
struct SentBytes {
  std::vector<double> predicted;  // of the payload, by the strategy's formula
  std::vector<double> measured;   // by the GPUs' counters of NVLink; kUnknown where they miss some
  std::vector<double> counted;    // by the communicator from its operations' sizes, with padding
  bool over_nvlink = false;       // they were measured
};

/// The GPUs over the timed window, one value per rank.
struct GpuHealth {
  std::vector<double> sm_clock_mhz, power_w, temperature_c, memory_used_bytes;
  std::vector<std::string> throttle_reasons;  // kUnknownText where NVML has none
  double joules_per_image = 0;
};

/// The result of a throughput run, of all ranks together.
struct Throughput {
  int ranks_computing = 0;
  double images_per_s = 0;
  double images_per_s_per_rank = 0;
  std::optional<Interval> interval;  // of images_per_s, 95 %; none with fewer than 25 steps
  int iterations = 0;
  long warmup_steps = 0;
  double warmup_s = 0;
  std::vector<double> step_ms;  // of this rank
  double step_ms_p50 = 0;       // of the slowest rank
  double step_ms_p95 = 0;
  double step_ms_cv = 0;
  double tflops_per_rank = 0;
  InputTimes input;                          // of the timed steps, over_ranks()
  std::vector<double> peak_memory_bytes;     // what was allocated, per rank
  std::vector<double> process_memory_bytes;  // by NVML or /proc, per rank; kUnknown is possible
  std::optional<Fused> fused;                // where the backend has the choice
  bool graph = false;
  DataType grad_dtype = DataType::float32;
  double loss_first = 0;
  double loss_last = 0;
  std::optional<double> grad_norm;  // of the last step, before clipping; where the update needs it
  int skipped_steps = 0;
  int skipped_timed_steps = 0;
  SentBytes sent;
  std::vector<long> staleness_updates;  // on the server that counts them
  std::optional<GpuHealth> health;
};

/// Runs on every rank; the result is complete on each.
Throughput measure_throughput(Engine& engine, BatchSource& batches, const TimingOptions& settings,
                              const MpiSession& session);

/// Compares the bytes that each rank of a host sent by its GPU's NVLink counter and by the
/// communicator's count: whether the counter has all of them. False if a counter cannot be read, or
/// moved by much less: some bytes then used another path.
bool nvlink_counts_all(const std::vector<double>& over_nvlink, const std::vector<double>& counted);

/// The metrics since the network's total was zeroed, added up over the ranks. Collective.
Metrics total_metrics(Engine& engine, const MpiSession& session);

/// Loss of all samples since the network's total was zeroed, of all ranks that compute. Waits;
/// every rank calls it.
double mean_loss(Engine& engine, const MpiSession& session);

/// Throws FailError when the last loss is not finite.
void check_loss(double first, double last);

/// The same, and when every timed step was skipped: nothing was trained.
void check_trained(const Throughput& measured);

// Where the time of a configuration's steps goes.

/// The same steps with more and more of them: the exchange alone, after the computation, during it.
struct Profile {
  Trace alone;                  // the exchange alone
  std::optional<Trace> serial;  // as --no-overlap; where the strategy overlaps
  Trace steps;
};

/// Runs them; to be restarted after. Every rank calls it.
Profile profile_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                      const MpiSession& session);

/// break_down() with what the other runs add. `none`: steps of the same ranks without an exchange,
/// or null.
Breakdown break_down(const Profile& profile, const Trace* none);

/// exchange_times(); none where there are more than are worth looking at.
std::vector<ExchangeTimes> bucket_times(const Trace& steps);

// The measurements as lines of at most 80 columns for people.

std::string summary_of(const Throughput& measured);
std::string summary_of(const Certificate& certificate);
/// The parts of a step of bin/train.
std::string summary_of(const Breakdown& breakdown);

// Whether the weights are what a training can leave: numbers, and the same on every rank.

/// "conv1.weight on rank 1 on n2": unsound_tensor() of what each rank holds, of the first rank that
/// has one; "" where all are sound. The same on every rank; every rank calls it.
std::string unsound_weights(Engine& engine, const MpiSession& session);

/// Throws FailError naming what unsound_weights() finds; `when` is part of the message.
void check_weights(Engine& engine, const MpiSession& session, const char* when);

/// "rank 1 on n2 differs from rank 0 on n1 (checksums ...)" of the first rank whose weights differ
/// from rank 0's in any bit; "" where all agree. The same on every rank; every rank calls it.
std::string differing_ranks(Engine& engine, const MpiSession& session);

/// Throws FailError naming what differing_ranks() finds; `when` is part of the message.
void check_ranks_agree(Engine& engine, const MpiSession& session, const char* when);

}  // namespace shakedown::training
