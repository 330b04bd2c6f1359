// The options of bin/soak.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/judge/court.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown {

class OptionSet;

}  // namespace shakedown

namespace shakedown::node {

struct SoakOptions {
  double minutes = 15;
  std::vector<std::string> types{"all"};
  std::vector<std::string> loads{"all"};
  std::vector<std::string> shapes{"all"};
  int size = 0;  // by backend
  int seed = 1;
  std::string output = ".";
  std::string record;
  std::string replay;
  int repeats = 100;
  BackendOptions backend;
  judge::JudgeOptions judge;
  std::string fault;  // for tests
};

void declare_options(OptionSet& options, SoakOptions& values);

/// m and n of the products.
std::int64_t size_of_products(const SoakOptions& options, BackendKind kind);

/// The product of this m and n. A, B and C have as many bytes each: k is m where their elements are
/// of one size, twice as large in fp8 and four times in int8, so that C takes no larger share of a
/// product's time to hash.
ProductSpec product_spec(ProductType type, std::int64_t size);

struct TypeChoice {
  std::vector<ProductType> types;  // that every rank's device has
  std::string remark;              // on those of "all" that a device lacks; empty: none
};
/// Of --types, where the ranks' devices have these. Throws UsageError naming one that was given by
/// name and that a device lacks.
TypeChoice choose_types(const std::vector<std::string>& requested,
                        const std::vector<std::vector<ProductType>>& by_rank);
/// Collective.
TypeChoice choose_types(const SoakOptions& options, const Backend& backend);

}  // namespace shakedown::node
