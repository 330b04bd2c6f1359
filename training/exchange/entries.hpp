// The strategies: a line each here, and a file each that defines `StrategyEntry NAME_strategy()`.
#pragma once

#include "training/exchange/strategy.hpp"

// In the order in which programs list them.
#define SHAKEDOWN_STRATEGIES(STRATEGY) \
  STRATEGY(none)                       \
  STRATEGY(all_reduce)                 \
  STRATEGY(ddp)                        \
  STRATEGY(parameter_server)           \
  STRATEGY(parameter_server_sharded)   \
  STRATEGY(parameter_server_async)     \
  STRATEGY(data_parallel)              \
  STRATEGY(zero1)                      \
  STRATEGY(zero2)                      \
  STRATEGY(fsdp)                       \
  STRATEGY(peer)

namespace shakedown::training {

#define DECLARE_STRATEGY(name) StrategyEntry name##_strategy();
SHAKEDOWN_STRATEGIES(DECLARE_STRATEGY)
#undef DECLARE_STRATEGY

template <class T>
std::unique_ptr<Strategy> make(const StrategyContext& context) {
  return std::make_unique<T>(context);
}

}  // namespace shakedown::training
