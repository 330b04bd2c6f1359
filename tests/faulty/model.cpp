#include "tests/faulty/model.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

namespace shakedown::faulty {
namespace {

using Json = nlohmann::json;

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// `object` must be one, and have no other keys.
const Json& checked(const Json& object, const std::string& at,
                    const std::vector<std::string>& keys) {
  if (!object.is_object()) throw Refused(at + "must be an object");
  for (const auto& [key, value] : object.items())
    if (std::count(keys.begin(), keys.end(), key) == 0)
      throw Refused(at + key + ": must be one of " + Json(keys).dump());
  return object;
}

/// The position of a name among those that are allowed; 0: the key is missing.
std::size_t choice(const Json& object, const char* key, const std::vector<std::string>& allowed) {
  if (!object.contains(key)) return 0;
  const auto found = std::find(allowed.begin(), allowed.end(), object[key].get<std::string>());
  if (found == allowed.end())
    throw Refused(std::string(key) + ": must be one of " + Json(allowed).dump());
  return static_cast<std::size_t>(found - allowed.begin());
}

double number(const Json& object, const char* key, double most, double otherwise) {
  const double found = object.value(key, otherwise);
  if (!(found >= 0 && found <= most))
    throw Refused(std::string(key) + ": must be a number from 0 to " + Json(most).dump());
  return found;
}

/// A number, or null: the seed chooses it.
int unit(const Json& object, const char* key, int most) {
  if (object.contains(key) && object[key].is_null()) return kDrawn;
  return object.contains(key) ? static_cast<int>(number(object, key, most, 0)) : kAny;
}

/// "0x8"; 0 where the key is missing.
std::uint64_t bits(const Json& object, const char* key) {
  if (!object.contains(key)) return 0;
  const auto digits = object[key].get<std::string>();
  char* end = nullptr;
  const std::uint64_t bits = std::strtoull(digits.c_str(), &end, 16);
  if (digits.rfind("0x", 0) != 0 || digits.size() < 3 || digits.size() > 18 || *end != '\0')
    throw Refused(std::string(key) + ": must be \"0x\" and 1 to 16 hexadecimal digits");
  return bits;
}

std::uint64_t share_of(double probability) {
  return probability >= 1 ? kAlways : static_cast<std::uint64_t>(std::ldexp(probability, 64));
}

std::uint32_t read_types(const Json& object) {
  if (!object.contains("types")) return ~0U;
  std::uint32_t bits = 0;
  for (const Json& type : object["types"])
    bits |= 1U << choice({{"types", type}}, "types", {std::begin(kTypes), std::end(kTypes)});
  return bits;
}

ProductFault read_product(const Json& object, std::uint64_t seed, ProductFault fault) {
  fault.seed = seed;
  fault.types = read_types(object);
  const int warps = fault.block_rows / 16;
  if (object.contains("unit")) {
    const Json of = checked(object["unit"], "unit.", {"sm", "warp", "lane"});
    fault.sm = unit(of, "sm", 1023);
    fault.warp = unit(of, "warp", warps - 1);
    fault.lane = unit(of, "lane", 31);
  }
  const auto drawn = [&](int& part, int index, int count) {
    if (part == kDrawn)
      part = static_cast<int>(number_format::hash(seed, static_cast<std::uint64_t>(index)) %
                              static_cast<std::uint64_t>(count));
  };
  drawn(fault.warp, 5, warps);
  drawn(fault.lane, 6, 32);
  fault.q = share_of(number(object, "q", 1, 0));
  fault.share = share_of(number(object, "share", 1, 1));
  fault.rate = share_of(number(object, "rate", 1, 1));
  fault.full_entropy = choice(object, "data", {"", "full_entropy"}) == 1;
  fault.has_when = object.contains("when");
  fault.when = bits(object, "when");
  fault.one_bit = object.contains("flip") && object["flip"].is_null();
  fault.flip = fault.one_bit ? 0 : bits(object, "flip");
  fault.set = bits(object, "set");
  fault.nan = choice(object, "becomes", {"", "nan"}) == 1;
  if ((fault.flip | fault.set) == 0 && !fault.one_bit && !fault.nan)
    throw Refused("flip: must be there, or one of set, becomes: else nothing is wrong");
  return fault;
}

void read_fault(const Json& object, const std::vector<std::string>& places,
                const ProductFault& defaults, Model& model, std::uint64_t seed) {
  const std::string on = places.at(choice(object, "on", places));
  const auto flip = [&] {
    const std::uint64_t own = bits(object, "flip");
    return own != 0 ? own : std::uint64_t{1} << number_format::hash(seed, 4) % 64;
  };
  if (on == "product") {
    checked(
        object, "",
        {"on", "types", "unit", "q", "share", "rate", "data", "when", "flip", "set", "becomes"});
    model.products.push_back(read_product(object, seed, defaults));
  } else if (on == "memory") {
    checked(object, "", {"on", "address", "bit", "stuck"});
    model.cells.push_back({number(object, "address", 1, 0.5),
                           static_cast<int>(number(object, "bit", 7, 0)),
                           static_cast<int>(number(object, "stuck", 1, 1))});
  } else if (on == "copy") {
    checked(object, "", {"on", "way", "rate", "flip"});
    const std::vector<std::string> ways{"", "h2d", "d2d", "d2h"};
    model.copies.push_back(
        {ways[choice(object, "way", ways)], number(object, "rate", 1, 1), flip()});
  } else {
    checked(object, "", {"on", "rate", "flip"});
    model.collectives.push_back({number(object, "rate", 1, 1), flip()});
  }
}

Model read_model(const std::string& path, std::uint64_t seed,
                 const std::vector<std::string>& places, const ProductFault& defaults) {
  std::ifstream in(path);
  if (!in) throw Refused("cannot be read");
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded()) throw Refused("is not JSON");
  checked(json, "", {"class", "source", "faults"});
  Model model;
  model.seed = seed;
  model.name = json.at("class");
  const Json& faults = json.at("faults");
  for (std::size_t i = 0; i < faults.size(); ++i) try {
      read_fault(faults[i], places, defaults, model, number_format::hash(seed, i));
    } catch (const std::exception& error) {
      throw Refused("faults[" + std::to_string(i) + "]: " + error.what());
    }
  return model;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Empty where no launcher says it.
std::string rank_of_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const std::string rank = environment(name); !rank.empty()) return rank;
  return "";
}

}  // namespace

Settings read_settings(const std::vector<std::string>& places, int block_rows, int block_columns) {
  Settings settings;
  const std::string path = environment("FAULTY_MODEL");
  ProductFault defaults;
  defaults.block_rows = block_rows;
  defaults.block_columns = block_columns;
  try {
    if (path.empty()) throw Refused("names the file of the faults");
    const std::string seed = environment("FAULTY_SEED");
    settings.model = read_model(path, seed.empty() ? 1 : std::strtoull(seed.c_str(), nullptr, 10),
                                places, defaults);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAULTY_MODEL %s: %s\n", path.c_str(), error.what());
    _exit(2);
  }
  const std::string rank = environment("FAULTY_RANK");
  settings.here = rank.empty() || rank == rank_of_process();
  if (!settings.here) settings.model = Model{};
  settings.log = environment("FAULTY_LOG");
  return settings;
}

std::uint64_t happen(std::uint64_t seed, std::uint64_t trial, double count, double rate) {
  // Gaps between events have a geometric distribution.
  if (rate <= 0) return 0;
  if (rate >= 1) return static_cast<std::uint64_t>(count);
  std::uint64_t events = 0;
  double at = 0;
  const double per_gap = 1 / std::log1p(-rate);
  for (std::uint64_t draw = 0;; ++draw) {
    const std::uint64_t bits = number_format::hash(number_format::hash(seed, trial), draw);
    at += std::floor(std::log((static_cast<double>(bits >> 11) + 0.5) * 0x1p-53) * per_gap) + 1;
    if (at > count) return events;
    ++events;
  }
}

namespace {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Log {
 public:
  Log(std::string path, std::string model, std::function<Counts()> counts)
      : path_(std::move(path)), model_(std::move(model)), counts_(std::move(counts)) {
    std::thread([this] {
      for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) write();
    }).detach();
  }

  void write() {
    const std::lock_guard lock(mutex_);
    const Counts now = counts_();
    if (written_ && std::memcmp(&now, &last_, sizeof(now)) == 0) return;
    if (first_flip_ == 0 && now.flips > 0) first_flip_ = unix_time();
    const std::string temporary = path_ + "." + std::to_string(getpid());
    std::ofstream file(temporary);
    file << text_of(now) << '\n';
    file.close();
    if (file && std::rename(temporary.c_str(), path_.c_str()) == 0) {
      last_ = now;
      written_ = true;
    }
  }

 private:
  std::string text_of(const Counts& now) const {
    Json json{{"class", model_},
              {"started", started_},
              {"products", now.products},
              {"wrong_products", now.wrong_products},
              {"flips", now.flips},
              {"copies", now.copies},
              {"collectives", now.collectives}};
    if (first_flip_ > 0) json["first_flip_at"] = first_flip_;
    const FirstFlip& first = now.first;
    const auto hex = [](std::uint64_t bits) {
      char text[20];
      std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(bits));
      return std::string(text);
    };
    if (first.is_set())
      json["first"] = {{"product", first.product},  {"row", first.row},
                       {"column", first.column},    {"sm", first.sm},
                       {"warp", first.warp},        {"lane", first.lane},
                       {"right", hex(first.right)}, {"wrong", hex(first.wrong)}};
    return json.dump();
  }

  std::string path_, model_;
  std::function<Counts()> counts_;
  std::mutex mutex_;
  double started_ = unix_time(), first_flip_ = 0;
  bool written_ = false;
  Counts last_{};
};

}  // namespace

void keep_log(const std::string& path, const std::string& model,
              const std::function<Counts()>& counts) {
  if (path.empty()) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    static Log* log = nullptr;
    log = new Log(path, model, counts);  // its thread needs it until the process is gone
    std::atexit([] { log->write(); });
  });
}

}  // namespace shakedown::faulty
