#include "training/measure/received.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>

#include "common/kernels.hpp"

namespace shakedown::training {
namespace {

/// Of images and labels, as the network reads them.
std::string hash_of_batch(Engine& engine) {
  const Buffer hashes(engine.device(), 2 * sizeof(std::uint64_t));
  engine.device().zero(hashes.data(), hashes.bytes(), engine.stream());
  auto* hash = static_cast<std::uint64_t*>(hashes.data());
  for (const View& view : engine.model.network().batch())
    engine.device().kernels().add_bit_hash(view, hash++, engine.stream());
  engine.finish();
  const auto found = download<std::uint64_t>(engine.device(), engine.stream(), hashes.data(), 2);
  return fmt::format("{:016x}{:016x}", found[0], found[1]);
}

std::vector<std::byte> bytes_of(Engine& engine, ConstView view) {
  return download<std::byte>(engine.device(), engine.stream(), view.data, view.bytes());
}

/// Whether the network reads these weights in a block.
bool reads(Engine& engine, int block, const std::vector<float>& master) {
  const Weights& weights = engine.model.network().weights();
  const ParameterTable& table = engine.model.network().table();
  const Range range = table.block_range(block);
  const std::vector<float> wanted(master.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                  master.begin() + static_cast<std::ptrdiff_t>(range.end));
  const View copy = weights.compute(range);
  const Buffer wide(engine.device(), wanted.size() * sizeof(float));
  upload<float>(engine.device(), engine.stream(), wide.data(), wanted);
  const Buffer rounded(engine.device(), copy.bytes());
  engine.device().kernels().convert(wide.view(DataType::float32), rounded.view(copy.type),
                                    engine.stream());
  if (bytes_of(engine, copy) != bytes_of(engine, rounded.view(copy.type))) return false;
  if (weights.vectors().count == 0) return true;
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const Parameter& p = table.parameters()[i];
    if (p.block != block || p.shape.size() != 1) continue;
    const auto vector = download<float>(engine.device(), engine.stream(),
                                        weights.vector(static_cast<int>(i)), p.stored);
    if (std::memcmp(vector.data(), &master[p.offset], p.stored * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

ReceivedInputs check_inputs(Engine& engine, BatchSource& batches, const MpiSession& session) {
  constexpr std::size_t kDigits = 32;  // of a batch's hash
  ReceivedInputs inputs;
  Network& network = engine.model.network();
  if (!engine.step.strategy_entry().ranks.first_has_inputs) return inputs;
  batches.start_epoch(0);
  batches.load_next(network);
  const auto received = session.all_gather(hash_of_batch(engine));
  const std::vector<DeviceBatch> made = batches.of_all_ranks();
  std::string hashes;
  for (auto batch = made.rbegin(); batch != made.rend(); ++batch) {  // this rank's last
    network.set_batch(batch->images, batch->labels);
    hashes.insert(0, hash_of_batch(engine));
  }
  const std::string sent = session.all_gather(hashes).front();
  inputs.compared = !sent.empty();
  for (std::size_t r = 0; r < received.size() && inputs.compared && inputs.cause.empty(); ++r)
    if (sent.substr(r * kDigits, kDigits) != received[r])
      inputs.cause = fmt::format("rank {} on {} has another batch than rank 0 made for it", r,
                                 session.hosts()[r]);
  return inputs;
}

std::string check_published(Engine& engine, const std::vector<float>& master,
                            const MpiSession& session) {
  std::string cause;
  if (engine.step.computes())
    engine.model.gather_weights([&](int block) {
      if (cause.empty() && !reads(engine, block, master))
        cause = fmt::format(
            "computes {} with other weights than the update made",
            block_names(engine.settings().network.architecture)[static_cast<std::size_t>(block)]);
    });
  const auto causes = session.all_gather(cause);
  for (std::size_t r = 0; r < causes.size(); ++r)
    if (!causes[r].empty())
      return fmt::format("rank {} on {} {}", r, session.hosts()[r], causes[r]);
  return "";
}

}  // namespace shakedown::training
