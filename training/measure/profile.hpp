// Where the time of a configuration's steps goes, measured and told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "training/measure/breakdown.hpp"

namespace shakedown::training {

/// The same steps with more and more of them: the exchange alone, after the computation, beside it.
struct Profile {
  Trace alone;                  // the exchange alone
  std::optional<Trace> serial;  // as --no-overlap; where the strategy overlaps
  Trace steps;
};

/// Runs them; to be restarted after. Every rank calls it.
Profile profile_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                      const MpiSession& session);

/// What a "step" record says of the exchange: comm_ms, push_ms, pull_ms, where there are any.
Json exchange_fields(const Trace& steps);
/// Of a "breakdown" record. `none`: steps of the same ranks without an exchange, or null.
Json breakdown_fields(const Trace& steps, const Trace* none);
Json breakdown_fields(const Profile& profile, const Trace* none);
/// Of "bucket" records, one an exchange; none where there are more than are worth looking at.
std::vector<Json> bucket_fields(const Trace& steps);

/// The parts of a step of bin/train, and its exchanges.
std::string summary_of_breakdown(const Json& breakdown);
/// A line an exchange, with a heading; empty where there is none.
std::string table_of_buckets(const std::vector<Json>& buckets);

}  // namespace shakedown::training
