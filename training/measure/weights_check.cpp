#include "training/measure/weights_check.hpp"

#include <fmt/format.h>

#include "training/step/soundness.hpp"

namespace shakedown::training {

std::string unsound_weights(Engine& engine, const MpiSession& session) {
  const auto tensors = session.all_gather(
      unsound_tensor(engine.network().table(), engine.own_master_weights(), engine.statistics()));
  for (std::size_t r = 0; r < tensors.size(); ++r)
    if (!tensors[r].empty()) return fmt::format("{} on rank {}", tensors[r], r);
  return "";
}

void check_weights(Engine& engine, const MpiSession& session, const char* when) {
  if (const std::string unsound = unsound_weights(engine, session); !unsound.empty())
    throw FailError(fmt::format("{} is not finite {} (or is a negative variance)", unsound, when));
}

void check_ranks_agree(Engine& engine, const MpiSession& session, const char* when) {
  engine.finish();
  const Weights& weights = engine.network().weights();
  std::uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a over 32-bit words
  std::vector<View> views{weights.vectors()};
  if (weights.computes_with_all())
    views.push_back(engine.strategy_entry().each_updates_all ? weights.master()
                                                             : weights.compute());
  for (const View& view : views)
    for (std::uint32_t word : download<std::uint32_t>(engine.device(), engine.stream(), view.data,
                                                      view.bytes() / sizeof(std::uint32_t)))
      hash = (hash ^ word) * 0x100000001B3U;
  const auto hashes = session.all_gather(fmt::format("{:016x}", hash));
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0])
      throw FailError(
          fmt::format("the ranks' weights differ {}: rank {} from rank 0 (checksums {} and {})",
                      when, r, hashes[r], hashes[0]));
}

}  // namespace shakedown::training
