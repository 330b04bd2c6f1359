// What strategies/table.cpp lists: one entry a file.
#pragma once

#include "training/exchange/strategy.hpp"

namespace shakedown::training {

StrategyEntry none_strategy();
StrategyEntry all_reduce_strategy();
StrategyEntry ddp_strategy();
StrategyEntry parameter_server_strategy();
StrategyEntry parameter_server_sharded_strategy();
StrategyEntry parameter_server_async_strategy();
StrategyEntry data_parallel_strategy();
StrategyEntry zero1_strategy();
StrategyEntry zero2_strategy();
StrategyEntry fsdp_strategy();

template <class T>
std::unique_ptr<Strategy> make(const StrategyContext& context) {
  return std::make_unique<T>(context);
}

}  // namespace shakedown::training
