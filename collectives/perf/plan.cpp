#include "collectives/perf/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>

#include "collectives/perf/options.hpp"
#include "collectives/traffic.hpp"
#include "common/options.hpp"
#include "common/types.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {
namespace {

constexpr std::size_t kMostSizes = 1'000'000;

/// As nccl-tests, uses the factor where it is above 1. Sets sizes, max_bytes, step and by_factor.
void plan_sizes(const PerfOptions& options, bool prefer_step, Plan& plan) {
  const std::size_t least = parse_bytes("--min-bytes", options.min_bytes);
  plan.max_bytes = parse_bytes("--max-bytes", options.max_bytes);
  plan.by_factor = options.step_factor > 1 && !prefer_step;
  plan.step = plan.by_factor ? static_cast<std::size_t>(options.step_factor)
                             : parse_bytes("--step-bytes", options.step_bytes);
  if (least > plan.max_bytes)
    throw UsageError(fmt::format("--min-bytes {}: must not exceed --max-bytes {}",
                                 options.min_bytes, options.max_bytes));
  if (plan.step == 0) throw UsageError("--step-bytes 0: must be at least 1");
  if (plan.by_factor && least == 0 && plan.max_bytes > 0)
    throw UsageError(
        "--min-bytes 0 cannot be used with --step-factor; start at 1 or use --step-bytes");
  if (!plan.by_factor && (plan.max_bytes - least) / plan.step >= kMostSizes)
    throw UsageError(fmt::format("--step-bytes {}: from {} to {} are more than {} sizes",
                                 options.step_bytes, options.min_bytes, options.max_bytes,
                                 kMostSizes));
  for (std::size_t size = least; size <= plan.max_bytes;
       size = plan.by_factor ? size * plan.step : size + plan.step) {
    plan.sizes.push_back(size);
    if (size == 0 && plan.by_factor) break;
  }
}

/// Every name, or all of them where one is "all".
template <class Value, class Parse>
std::vector<Value> parse_list(const std::vector<std::string>& names, std::vector<Value> all,
                              Parse&& parse) {
  std::vector<Value> values;
  for (const std::string& name : names) {
    if (name == "all") return all;
    values.push_back(parse(name));
  }
  return values;
}

/// Throws UsageError naming the choices, which are numbered from 0.
void check_choice(const char* option, int value, const std::vector<const char*>& choices) {
  if (value < static_cast<int>(choices.size())) return;
  std::vector<std::string> known;
  for (const char* choice : choices) known.push_back(fmt::format("{} ({})", known.size(), choice));
  throw UsageError(fmt::format("{} {}: must be one of {}", option, value, fmt::join(known, ", ")));
}

void refuse_unsupported(const PerfOptions& options) {
  for (const IgnoredOption& ignored : options.ignored)
    if (!ignored.value.empty() && ignored.value != "0" && ignored.value != ignored.fulfilled)
      throw UsageError(
          fmt::format("{} {}: not supported: {}", ignored.names, ignored.value, ignored.reason));
  for (const char* name : {"NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_SPLIT", "NCCL_TESTS_MIN_BW"})
    if (const char* value = std::getenv(name); value != nullptr && !options.as_nccl_tests())
      throw UsageError(fmt::format(
          "{}={}: is for nccl-tests' names alone, as all_reduce_perf: unset it", name, value));
  if (const char* device = std::getenv("NCCL_TESTS_DEVICE");
      device != nullptr && std::string_view(device) != "-1")
    throw UsageError(fmt::format(
        "NCCL_TESTS_DEVICE={}: not supported, choose GPUs by CUDA_VISIBLE_DEVICES", device));
}

/// nccl-tests' group of a rank, by NCCL_TESTS_SPLIT_MASK (hexadecimal) or NCCL_TESTS_SPLIT (AND,
/// MOD or DIV and a number); nothing where `text` is neither.
std::optional<long> group_of(long rank, std::string text, bool is_mask) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  char operation = '&';
  if (!is_mask) {
    constexpr std::array<std::pair<std::string_view, char>, 6> kOperations{
        {{"AND", '&'}, {"&", '&'}, {"MOD", '%'}, {"%", '%'}, {"DIV", '/'}, {"/", '/'}}};
    const auto* const named =
        std::find_if(kOperations.begin(), kOperations.end(),
                     [&](const auto& entry) { return text.starts_with(entry.first); });
    if (named == kOperations.end()) return std::nullopt;
    operation = named->second;
    text.erase(0, named->first.size());
  }
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, is_mask ? 16 : 0);
  if (end == text.c_str() || *end != '\0' || (operation != '&' && number <= 0)) return std::nullopt;
  if (operation == '&') return rank & number;
  return operation == '%' ? rank % number : rank / number;
}

/// By rank, numbered from 0 in the order of their first ranks; empty where all are one group. Sets
/// `split`.
std::vector<int> groups_of(const PerfOptions& options, int world_size, std::string& split) {
  for (const char* name : {"NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_SPLIT"}) {
    const char* const value = options.as_nccl_tests() ? std::getenv(name) : nullptr;
    if (value == nullptr) continue;  // nccl-tests reads the mask first
    split = fmt::format("{}={}", name, value);
    std::vector<long> colors;
    std::vector<int> groups;
    for (long rank = 0; rank < world_size; ++rank) {
      const auto color = group_of(rank, value, std::string_view(name).ends_with("MASK"));
      if (!color)
        throw UsageError(fmt::format("{}: must be {}", split,
                                     std::string_view(name).ends_with("MASK")
                                         ? "a hexadecimal number"
                                         : "AND, MOD or DIV and a number"));
      const auto known = std::find(colors.begin(), colors.end(), *color);
      groups.push_back(static_cast<int>(known - colors.begin()));
      if (known == colors.end()) colors.push_back(*color);
    }
    return colors.size() > 1 ? groups : std::vector<int>();
  }
  return {};
}

int smallest_group(const std::vector<int>& groups, int world_size) {
  int least = world_size;
  for (const int group : groups)
    least = std::min(least, static_cast<int>(std::count(groups.begin(), groups.end(), group)));
  return least;
}

/// A rank of every group, or all of them.
std::vector<int> roots_of(const std::string& text, const std::vector<int>& groups, int world_size) {
  const int ranks = smallest_group(groups, world_size);
  std::vector<int> roots(static_cast<std::size_t>(ranks));
  std::iota(roots.begin(), roots.end(), 0);
  if (text == "all" || text == "-1") return roots;
  int root = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), root);
  if (error != std::errc() || end != text.data() + text.size() || root < 0 || root >= ranks)
    throw UsageError(fmt::format("--root {}: no such rank ({} has ranks 0 to {}; or all)", text,
                                 groups.empty() ? "this job" : "the smallest group", ranks - 1));
  return {root};
}

/// A rank uses one GPU.
void check_ranks(const PerfOptions& options, int world_size) {
  const int each = options.ranks_of_process();
  if (each == 1) return;
  std::vector<std::string> requested;
  if (options.gpus > 1) requested.push_back(fmt::format("--ngpus {}", options.gpus));
  if (options.threads > 1) requested.push_back(fmt::format("--nthreads {}", options.threads));
  throw UsageError(
      fmt::format("{0}: each rank uses one GPU: use launch/mpi -n {1} {2}, or srun --ntasks {1} "
                  "(without MPI: {2} "
                  "-g {3})",
                  fmt::join(requested, " "), each * world_size, options.program, each));
}

/// Leaves out operations that these ranks cannot do where all were requested, else throws
/// UsageError.
void check_operations(Plan& plan, const PerfOptions& options, int world_size) {
  const bool all = plan.operations.size() == operations().size();
  std::vector<int> sizes;  // of the group of each rank
  for (const int group : plan.groups)
    sizes.push_back(static_cast<int>(std::count(plan.groups.begin(), plan.groups.end(), group)));
  if (sizes.empty()) sizes.push_back(world_size);
  std::vector<const Operation*> possible;
  for (const Operation* operation : plan.operations) {
    const bool fits = std::all_of(sizes.begin(), sizes.end(), [](int n) {
      return std::has_single_bit(static_cast<unsigned>(n));
    });
    std::string cause;
    if (operation->power_of_two && !fits) cause = "needs a power of two of ranks";
    if (operation->power_of_two && options.aggregate > 1)
      cause = "its exchanges follow one another: --agg-iters must be 1";
    if (cause.empty())
      possible.push_back(operation);
    else if (all)
      plan.left_out.push_back(fmt::format("{} ({})", operation->name, cause));
    else
      throw UsageError(fmt::format("--operation {}: {}", operation->name, cause));
    if (operation->name == std::string_view("all_to_all_v"))
      Traffic::of_environment().check(*std::max_element(sizes.begin(), sizes.end()),
                                      plan.sizes.front(), plan.max_bytes);
  }
  plan.operations = possible;
}

/// The settings of --quick, except for options that are given next to it.
PerfOptions quick(PerfOptions o, const OptionSet& given) {
  if (!given.given("--operation"))
    o.operations = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
  if (!given.given("--min-bytes")) o.min_bytes = "1M";
  if (!given.given("--max-bytes")) o.max_bytes = "64M";
  if (!given.given("--step-factor")) o.step_factor = 4;
  return o;
}

BenchSettings bench_settings(const PerfOptions& o) {
  check_choice("--blocking", o.blocking, {"none", "wait, barrier", "wait", "untimed barrier"});
  check_choice("--average", o.average, {"rank 0", "mean", "min", "max"});
  if (o.cta_policy >= 0)
    check_choice("--cta-policy", o.cta_policy, {"default", "efficiency", "zero"});
  if (o.skip > 0 && o.one_by_one == 0)
    throw UsageError(fmt::format("--per-iter-skip {}: is of --one-by-one 1", o.skip));
  check_choice("--register", o.registration, {"none", "registered", "symmetric windows"});
  if (o.graph > 0 && (o.one_by_one != 0 || o.blocking != 0))
    throw UsageError(fmt::format("--cuda-graph {} cannot be combined with {}", o.graph,
                                 o.blocking != 0 ? "--blocking" : "--one-by-one"));
  BenchSettings settings;
  settings.iterations = o.iterations;
  settings.warmup = o.warmup;
  settings.repeats = o.graph > 0 ? o.graph : o.repeats;
  settings.aggregate = o.aggregate;
  settings.one_by_one = o.one_by_one != 0;
  settings.skip = o.skip;
  settings.graph = o.graph > 0;
  settings.check = o.check > 0;
  settings.average = static_cast<Average>(o.average);
  settings.blocking = static_cast<Blocking>(o.blocking);
  settings.registration = static_cast<Registration>(o.registration);
  return settings;
}

}  // namespace

Plan plan_of(const PerfOptions& options, const OptionSet& given) {
  refuse_unsupported(options);
  const PerfOptions o = options.quick ? quick(options, given) : options;
  Plan plan;
  std::vector<const Operation*> all;
  for (const Operation& operation : operations()) all.push_back(&operation);
  plan.operations =
      parse_list(o.operations, all, [](const std::string& n) { return &find_operation(n); });
  plan.types = parse_list(o.types, all_data_types(),
                          [](const std::string& n) { return parse_data_type("--dtype", n); });
  plan.reductions = parse_list(o.reductions, all_reductions(), [](const std::string& n) {
    return parse_reduction("--reduction", n);
  });
  plan_sizes(o, given.given("--step-bytes") && !given.given("--step-factor"), plan);
  plan.align_bytes = static_cast<std::size_t>(o.align);
  plan.bench = bench_settings(o);
  if (o.as_nccl_tests()) plan.min_mean_busbw_gbs = environment_number("NCCL_TESTS_MIN_BW", 1e6);
  return plan;
}

Plan make_plan(const PerfOptions& options, const OptionSet& given, int world_size) {
  Plan plan = plan_of(options, given);
  plan.groups = groups_of(options, world_size, plan.split);
  check_ranks(options, world_size);
  check_operations(plan, options, world_size);
  plan.roots = roots_of(options.root, plan.groups, world_size);
  return plan;
}

std::vector<Trial> rows_of(const Operation& operation, const Plan& plan, int ranks) {
  const std::vector<int> roots = operation.rooted ? plan.roots : std::vector<int>{-1};
  const std::vector<Reduction> reductions =
      operation.reduces ? plan.reductions : std::vector<Reduction>{Reduction::sum};
  std::vector<Trial> rows;
  for (DataType type : plan.types) {
    const std::size_t align = std::max<std::size_t>(1, plan.align_bytes / size_of(type));
    for (Reduction reduction : reductions)
      for (int root : roots)
        for (std::size_t size : plan.sizes)
          rows.push_back({&operation, type, reduction, root,
                          operation.counts(size / size_of(type), static_cast<std::size_t>(ranks),
                                           align, size_of(type)),
                          false, size});
  }
  return rows;
}

Communicator& choose_transport(const std::string& transport, Backend& backend) {
  if (transport == "mpi") return *backend.host;
  if (transport == "nccl" && std::string(backend.world->transport()) != "nccl")
    throw UsageError("--transport nccl: NCCL runs on GPUs, the backend is cpu");
  return *backend.world;
}

void check_transport(const PerfOptions& options, const Plan& plan,
                     const Communicator& communicator) {
  if (!is_mpi(communicator)) {
    if (options.backend.mpi_algorithm == "own")
      throw UsageError("--mpi-algorithm own needs --transport mpi, the transport is nccl");
    return;
  }
  if (options.graph > 0)
    throw UsageError("--cuda-graph needs --transport nccl: MPI operations cannot be captured");
  if (options.registration != 0)
    throw UsageError("--register registers buffers with NCCL and needs --transport nccl");
  if (options.cta_policy >= 0)
    throw UsageError("--cta-policy is of NCCL's kernels and needs --transport nccl");
  if (options.path) throw UsageError("--path reads NCCL's log and needs --transport nccl");
  std::size_t width = 8;
  for (DataType type : plan.types) width = std::min(width, size_of(type));
  if (plan.sizes.back() / width > INT_MAX)
    throw UsageError(
        fmt::format("--max-bytes {}: MPI counts up to {} elements", options.max_bytes, INT_MAX));
}

void limit_types(Plan& plan, const PerfOptions& options, const Communicator& communicator,
                 const Backend& backend, const MpiSession& session) {
  const bool all = std::count(options.types.begin(), options.types.end(), "all") > 0;
  std::vector<DataType> types;
  for (DataType type : plan.types) {
    const auto supporting = session.all_gather(communicator.supports(type) ? 1.0 : 0.0);
    const auto lacking = std::find(supporting.begin(), supporting.end(), 0.0);  // GPUs may differ
    if (lacking == supporting.end()) types.push_back(type);
    if (lacking != supporting.end() && all)
      plan.left_out.push_back(fmt::format("{} (not supported)", name_of(type)));
    if (lacking == supporting.end() || all) continue;
    const auto rank = static_cast<std::size_t>(lacking - supporting.begin());
    throw UsageError(fmt::format(
        "--dtype {}: not supported by {} on rank {} on {}{}", name_of(type),
        backend.kind == BackendKind::cpu ? "the cpu backend" : communicator.transport(), rank,
        session.hosts()[rank],
        is_float8(type) ? " (8-bit floats need compute capability 9.0 and NCCL 2.24)" : ""));
  }
  plan.types = types;
}

std::string limit_sizes(Plan& plan, std::size_t most) {
  if (plan.sizes.back() <= most) return "";
  if (plan.sizes.front() > most) plan.sizes = {most};
  while (plan.sizes.back() > most) plan.sizes.pop_back();
  plan.max_bytes = plan.sizes.back();
  return fmt::format("#\n# Reducing maxBytes to {} due to memory limitation", plan.max_bytes);
}

}  // namespace shakedown::collectives
