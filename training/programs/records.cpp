#include "training/programs/records.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace shakedown::training {

namespace {

std::int64_t milliseconds(double seconds) { return std::llround(1e3 * seconds); }

}  // namespace

Json record_of(const EpochResult& result) {
  Json fields{{"epoch", result.epoch}};
  if (const auto& trained = result.trained)
    fields.update({{"train_loss", trained->loss},
                   {"train_top1", trained->top1},
                   {"learning_rate", trained->learning_rate},
                   {"images_per_s", trained->images_per_s},
                   {"epoch_s", trained->seconds},
                   {"total_s", result.seconds},
                   {"start_ms", result.end_ms - milliseconds(result.seconds)},
                   {"trained_ms", result.end_ms - milliseconds(result.seconds - trained->seconds)},
                   {"end_ms", result.end_ms},
                   {"input_stall_ms", 1e3 * trained->input.stall_s},
                   {"skipped_steps", trained->skipped_steps},
                   {"images_dropped", trained->images_dropped},
                   {"bad_images", trained->bad_images},
                   {"peak_memory_bytes", trained->peak_memory_bytes}});
  if (result.trained) fields.update(stages_of(result.trained->input));
  if (result.trained && result.trained->grad_norm) fields["grad_norm"] = *result.trained->grad_norm;
  if (const auto& validated = result.validated)
    fields.update({{"val_loss", validated->loss},
                   {"val_top1", validated->top1},
                   {"val_top5", validated->top5},
                   {"validated_images", validated->images}});
  if (result.validated && result.validated->rank)
    fields["validating_rank"] = *result.validated->rank;
  if (const auto& average = result.validated_average)
    fields.update({{"val_loss_ema", average->loss},
                   {"val_top1_ema", average->top1},
                   {"val_top5_ema", average->top5}});
  return fields;
}

Json record_of(const InputSetup& setup) {
  if (setup.workers == 0) return Json::object();
  return {{"workers", setup.workers},
          {"decoder", setup.decoder},
          {"decoder_share", setup.decoder == "cpu" ? 0 : 100},
          {"cores", setup.cores},
          {"loading_ranks", setup.ranks},
          {"source", setup.packed ? "pack" : "folder"},
          {"cached", setup.cached}};
}

Json record_of(const CheckpointReport& written) {
  Json fields{{"epoch", written.position.epoch},   {"update", written.position.update},
              {"images", written.position.images}, {"best", written.best},
              {"stall_ms", written.stall_ms},      {"write_s", written.write_s}};
  if (!written.files.empty()) fields["file_bytes"] = written.bytes;
  if (!written.error.empty()) fields["error"] = written.error;
  return fields;
}

Json record_of(const LargestBatch& found) {
  return {{"max_batch", true}, {"device_memory_bytes", found.device_memory_bytes}};
}

Json record_of(const Round& round) {
  return merged(record_of(round.throughput), record_of(round.exchange));
}

Json ratios_of(const Round& round) {
  Json fields{{"epoch_s", round.epoch_s}};
  if (round.efficiency_vs_none) fields["efficiency_vs_none"] = *round.efficiency_vs_none;
  if (round.efficiency_vs_single) fields["efficiency_vs_single"] = *round.efficiency_vs_single;
  if (round.speedup_vs_plain) fields["speedup_vs_plain"] = *round.speedup_vs_plain;
  return fields;
}

}  // namespace shakedown::training
