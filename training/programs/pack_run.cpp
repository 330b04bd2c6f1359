#include "training/programs/pack_run.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/progress.hpp"
#include "training/data/pack_source.hpp"
#include "training/data/write_pack.hpp"
#include "training/programs/dataset.hpp"

namespace shakedown::training {

ExitCode pack_images(const TrainOptions& options, MpiSession& session) {
  set_timeout(session, options.backend);
  if (!session.is_root()) {
    session.wait_idle();
    return ExitCode::pass;
  }
  std::vector<int> others(static_cast<std::size_t>(session.world_size() - 1));
  std::iota(others.begin(), others.end(), 1);
  const Output output{"--pack", options.pack};
  check_writable(output);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(options.pack, ignored) &&
      std::filesystem::file_size(options.pack, ignored) > 0 && !is_packed_file(options.pack))
    throw UsageError(
        fmt::format("--pack {}: this file exists and is no packed file: remove it, or name another",
                    options.pack));
  const auto source = open_images(options.data.train_dir, false);
  say(session, text_of(*source));
  const int workers =
      workers_of(options.input, static_cast<int>(std::thread::hardware_concurrency()));
  Progress progress("packing", static_cast<long>(source->size()), "images", true);
  const Packed packed = write_pack(*source, output, workers, [&](std::size_t images) {
    progress.update(static_cast<long>(images));
    session.progress(others);
  });
  say(session, fmt::format("{}: {}", options.pack, text_of(packed)));
  session.barrier();
  return ExitCode::pass;
}

}  // namespace shakedown::training
