// --mllog: a training as MLPerf's log lines, which MLCommons' compliance checker reads.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/record.hpp"
#include "training/programs/epochs.hpp"
#include "training/step/optimizer.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct MlLogOptions {
  std::string file;                                                                  // empty: none
  std::chrono::system_clock::time_point started = std::chrono::system_clock::now();  // the program
};
void declare_options(OptionSet& options, MlLogOptions& values);

/// The facts that the log states about a training.
struct MlLogFacts {
  std::string model;
  std::string platform;  // "8 x NVIDIA H200"
  std::uint64_t seed = 0;
  long train_images = 0;
  long val_images = 0;
  int image_size = 0;
  int classes = 0;
  int batch_size = 0;  // per rank and micro-batch
  int accumulate = 1;
  int ranks = 1;  // that compute
  OptimizerOptions optimizer;
  double warmup_epochs = 0;
  double end_learning_rate = 0;
  std::optional<double> poly_power;  // of a polynomial schedule
  long decay_steps = 0;              // after the warm-up
};

/// "closed" where the settings are those of the ResNet benchmark on ImageNet, so that the checker
/// holds the log to its rules; else "open".
const char* division_of(const MlLogFacts& facts);

/// Lines ":::MLLOG {...}", flushed as written. The benchmark ends with the first validation that
/// reaches its target, 0.7590; a training that does not reach it ends as aborted. Where it
/// continues the log does too, as of one run: the checker accepts one start and one end.
class MlLog {
 public:
  /// Starts the log: initialisation has begun with the program. With `continues`, takes back the
  /// end of the log that is there; throws UsageError where there is none. Without a file it writes
  /// nothing.
  MlLog(const MlLogOptions& options, bool continues);
  /// Ends it: "aborted" unless the target was reached.
  ~MlLog();
  MlLog(const MlLog&) = delete;
  MlLog& operator=(const MlLog&) = delete;

  /// Initialisation has ended; the training begins, unless it has begun before.
  void begin(const MlLogFacts& facts);
  /// The training goes on with this epoch: takes back what the log has of it and of later ones,
  /// which the checkpoint does not have. A log whose benchmark has ended stays as it is.
  void continue_at(int epoch);
  /// The lines of an epoch that has just ended, with the times of its parts.
  void add(const EpochResult& result);

 private:
  void write(const char* type, const char* key, const Json& value, std::int64_t time_ms,
             const Json& metadata = Json::object());
  void state(const char* key, const Json& value);
  void stop(const char* status, int epoch);
  void resume();
  void keep_before(const std::function<bool(const Json& line)>& end);

  std::string path_;
  std::ofstream file_;
  bool begun_ = false;
  bool running_ = false;
  int epoch_ = 0;  // the last one
};

}  // namespace shakedown::training
