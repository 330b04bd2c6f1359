// The measurements as lines of at most 80 columns for people.
#pragma once

#include <string>
#include <vector>

#include "training/measure/certificate.hpp"
#include "training/measure/profile.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {

std::string summary_of(const Throughput& measured, const ExchangeSums& exchange);
std::string summary_of(const Certificate& certificate);
/// The parts of a step of bin/train.
std::string summary_of(const Breakdown& breakdown);
/// A line per exchange, with a heading; empty where there is none.
std::string table_of(const std::vector<ExchangeTimes>& exchanges);

}  // namespace shakedown::training
