#include "training/measure/weights_check.hpp"

#include <fmt/format.h>

#include "training/step/soundness.hpp"

namespace shakedown::training {

std::string unsound_weights(Engine& engine, const MpiSession& session) {
  const auto tensors = session.all_gather(unsound_tensor(engine.model.network().table(),
                                                         engine.model.own_master_weights(),
                                                         engine.model.statistics()));
  for (std::size_t r = 0; r < tensors.size(); ++r)
    if (!tensors[r].empty())
      return fmt::format("{} on rank {} on {}", tensors[r], r, session.hosts()[r]);
  return "";
}

void check_weights(Engine& engine, const MpiSession& session, const char* when) {
  if (const std::string unsound = unsound_weights(engine, session); !unsound.empty())
    throw FailError(fmt::format("{} is not finite {} (or is a negative variance)", unsound, when));
}

std::string differing_ranks(Engine& engine, const MpiSession& session) {
  const auto hashes = session.all_gather(fmt::format("{:016x}", engine.model.checksum()));
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0])
      return fmt::format("rank {} on {} differs from rank 0 on {} (checksums {} and {})", r,
                         session.hosts()[r], session.hosts()[0], hashes[r], hashes[0]);
  return "";
}

void check_ranks_agree(Engine& engine, const MpiSession& session, const char* when) {
  if (const std::string ranks = differing_ranks(engine, session); !ranks.empty())
    throw FailError(fmt::format("the ranks' weights differ {}: {}", when, ranks));
}

}  // namespace shakedown::training
