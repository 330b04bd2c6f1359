// The settings of one rank's engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "resnet/network.hpp"
#include "training/data/batches.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/ema.hpp"
#include "training/step/optimizer.hpp"

namespace shakedown::training {

struct EngineSettings {
  NetworkSettings network;
  OptimizerOptions optimizer;
  EmaOptions ema;
  std::string norm_stats = "first";  // whose running statistics are validated and saved: or average
  StrategyOptions strategy;
  int accumulate = 1;    // micro-batches per update
  std::string no_graph;  // why steps must not be CUDA graphs; empty: they are where they can be
  std::uint64_t seed = 0;
  std::string weights_file;  // or empty: seeded
  /// Device memory that the caller will allocate for the input of such a network.
  std::function<std::size_t(const NetworkSettings&)> input_bytes = batch_bytes;
  /// Virtual shards of the global batch per rank, a micro-batch each, with --invariant; else 1.
  int shards() const { return strategy.invariant > 0 ? accumulate : 1; }
  /// Makes a strategy; tests make one that fails.
  std::function<std::unique_ptr<Strategy>(const StrategyEntry&, const StrategyContext&)>
      make_strategy = [](const auto& entry, const auto& context) { return entry.make(context); };
};

}  // namespace shakedown::training
