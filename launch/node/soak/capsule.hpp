// The replay capsule: a small file that has what is needed to repeat an operation that went wrong,
// on any node, and the circumstances it went wrong in.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/record.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/soak_run.hpp"

namespace shakedown::node {

/// A product of which a tile was wrong.
struct Capsule {
  // what to repeat
  std::uint64_t seed = 0;
  Operands operands = Operands::full_entropy;
  ProductSpec spec;
  std::string algorithm;  // Product::algorithm()
  std::uint32_t turn = 0;
  std::int64_t tile = 0;
  std::optional<std::uint64_t> expected_hash;  // of the tile; none: not known, see evidence.hpp
  std::optional<std::uint64_t> found_hash;
  // the first wrong element, where a re-run showed it
  std::optional<std::uint64_t> element;  // row-major in C
  std::optional<std::uint64_t> expected_bits, found_bits;
};

/// The file has "circumstances" as well: keys and values for people ("temperature_c", "serial",
/// "versions.cublas", ...).
Json to_json(const Capsule& capsule);
/// Throws UsageError "FILE: key: what is allowed".
Capsule capsule_of(const Json& json, const std::string& file);

/// Throws UsageError where `rank` could write no capsule: before the hours whose evidence it is.
void check_capsules(const std::string& folder, int rank);

/// Writes FOLDER/capsule-NAME.json and returns its path.
std::string write_capsule(const std::string& folder, const std::string& name, const Json& capsule);
/// Throws UsageError where the file cannot be read, or is no capsule.
Capsule read_capsule(const std::string& path);

// bin/soak --replay: a capsule's product, repeated on every rank's device.

/// What the ranks' re-runs say of their devices; where all of two or more differ, of none of them.
std::vector<Verdict> verdicts_of(const std::vector<Look>& looks, const Capsule& capsule,
                                 const std::vector<std::string>& uuids);

/// Collective. FAIL where a product's tile is not what the capsule expects, or, where it does not
/// know that, where products differ from one another.
ExitCode replay_capsule(const SoakOptions& options, Backend& backend, MpiSession& session,
                        Record& record);

}  // namespace shakedown::node
