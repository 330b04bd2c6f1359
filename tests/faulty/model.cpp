#include "tests/faulty/model.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace shakedown::faulty {
namespace {

using Json = nlohmann::json;

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// An object of the file. Each reader notes its key; close() refuses what nobody has read.
class Object {
 public:
  Object(const Json& json, std::string at) : json_(json), at_(std::move(at)) {
    if (!json.is_object()) throw Refused(at_ + ": must be an object");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& allowed) const {
    throw Refused(at_ + (at_.empty() ? "" : ".") + key + ": must be " + allowed);
  }
  const Json* find(const std::string& key) {
    if (std::count(read_.begin(), read_.end(), key) == 0) read_.push_back(key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  std::string text(const std::string& key, const std::vector<std::string>& allowed,
                   const std::string& otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(key, allowed.empty() ? "a text" : "one of " + joined(allowed));
    const auto name = value->get<std::string>();
    if (!allowed.empty() && std::count(allowed.begin(), allowed.end(), name) == 0)
      refuse(key, "one of " + joined(allowed));
    return name;
  }
  double number(const std::string& key, double least, double most, double otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    const double found = value->is_number() ? value->get<double>() : least - 1;
    if (!(found >= least && found <= most)) {
      char allowed[80];
      std::snprintf(allowed, sizeof(allowed), "a number from %g to %g", least, most);
      refuse(key, allowed);
    }
    return found;
  }
  int whole(const std::string& key, int least, int most, int otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    const auto found = value->is_number_integer() ? value->get<std::int64_t>() : least - 1LL;
    if (found < least || found > most)
      refuse(key, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return static_cast<int>(found);
  }
  /// A number, or null: the seed chooses it.
  int unit(const std::string& key, int most) {
    const auto found = json_.find(key);
    if (found != json_.end() && found->is_null()) {
      read_.push_back(key);
      return kDrawn;
    }
    return whole(key, 0, most, kAny);
  }
  std::uint64_t bits(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return 0;
    const std::string digits = value->is_string() ? value->get<std::string>() : "";
    char* end = nullptr;
    const std::uint64_t bits = std::strtoull(digits.c_str(), &end, 16);
    if (digits.rfind("0x", 0) != 0 || digits.size() > 18 || digits.size() < 3 || *end != '\0')
      refuse(key, "\"0x\" and 1 to 16 hexadecimal digits");
    return bits;
  }
  std::string at(const std::string& key) const { return at_ + (at_.empty() ? "" : ".") + key; }
  void close() const {
    for (const auto& [key, value] : json_.items())
      if (std::count(read_.begin(), read_.end(), key) == 0) refuse(key, "one of " + joined(read_));
  }

 private:
  const Json& json_;
  std::string at_;
  std::vector<std::string> read_;
};

std::uint64_t share_of(double probability) {
  return probability >= 1 ? kAlways : static_cast<std::uint64_t>(std::ldexp(probability, 64));
}

void read_flip(Object& object, ProductFault& fault) {
  const Json* flip = object.find("flip");
  fault.one_bit = flip != nullptr && flip->is_null();
  fault.flip = fault.one_bit ? 0 : object.bits("flip");
  fault.set = object.bits("set");
  fault.clear = object.bits("clear");
  fault.nan = !object.text("becomes", {"nan"}, "").empty();
}

bool changes_bits(const ProductFault& fault) {
  return (fault.flip | fault.set | fault.clear) != 0 || fault.one_bit || fault.nan;
}

std::uint32_t read_types(Object& object) {
  const Json* types = object.find("types");
  if (types == nullptr) return ~0U;
  const std::vector<std::string> known(std::begin(kTypes), std::end(kTypes));
  std::uint32_t bits = 0;
  for (const Json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) object.refuse("types", "a list of " + joined(known));
    bits |= 1U << (found - known.begin());
  }
  return bits;
}

void read_block(Object& object, ProductFault& fault) {
  const Json* block = object.find("block");
  if (block == nullptr) return;
  if (!block->is_array() || block->size() != 2 ||
      !std::all_of(block->begin(), block->end(), [](const Json& edge) {
        return edge.is_number_integer() && edge >= 16 && edge <= 1024 && edge.get<int>() % 16 == 0;
      }))
    object.refuse("block", "[rows, columns], multiples of 16 up to 1024");
  fault.block_rows = (*block)[0];
  fault.block_columns = (*block)[1];
}

ProductFault read_product(Object& object, std::uint64_t seed, ProductFault fault) {
  fault.seed = seed;
  fault.types = read_types(object);
  read_block(object, fault);
  const int warps = fault.block_rows / 16;
  if (const Json* json = object.find("unit")) {
    Object unit(*json, object.at("unit"));
    fault.sm = unit.unit("sm", 1023);
    fault.warp = unit.unit("warp", warps - 1);
    fault.lane = unit.unit("lane", 31);
    unit.close();
  }
  const auto drawn = [&](int& part, int index, int count) {
    if (part == kDrawn)
      part = static_cast<int>(number_format::hash(seed, static_cast<std::uint64_t>(index)) %
                              static_cast<std::uint64_t>(count));
  };
  drawn(fault.warp, 5, warps);
  drawn(fault.lane, 6, 32);
  fault.moves = object.text("placement", {"fixed", "launch"}, "fixed") == "launch";
  fault.q = share_of(object.number("q", 0, 1, 0));
  fault.share = share_of(object.number("share", 0, 1, 1));
  fault.rate = share_of(object.number("rate", 0, 1, 1));
  fault.full_entropy = !object.text("data", {"full_entropy"}, "").empty();
  fault.has_when = object.find("when") != nullptr;
  fault.when = object.bits("when");
  read_flip(object, fault);
  return fault;
}

void read_fault(Object object, const std::vector<std::string>& places, const ProductFault& defaults,
                Model& model, std::uint64_t seed) {
  const std::string on = object.text("on", places, "");
  if (on.empty()) object.refuse("on", "one of " + joined(places));
  if (on == "product") model.products.push_back(read_product(object, seed, defaults));
  const auto flip = [&] {
    const std::uint64_t bits = object.bits("flip");
    return bits != 0 ? bits : std::uint64_t{1} << number_format::hash(seed, 4) % 64;
  };
  if (on == "memory")
    model.cells.push_back({object.number("address", 0, 1, 0.5), object.whole("bit", 0, 7, 0),
                           object.whole("stuck", 0, 1, 1)});
  if (on == "copy")
    model.copies.push_back(
        {object.text("way", {"h2d", "d2d", "d2h"}, ""), object.number("rate", 0, 1, 1), flip()});
  if (on == "collective")
    model.collectives.push_back(
        {object.text("operation",
                     {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "recv"}, ""),
         object.number("rate", 0, 1, 1), flip()});
  if (on == "slow") model.slow_sms = object.whole("sms", 1, 4, 1);
  object.close();
  if (on == "product" && !changes_bits(model.products.back()))
    object.refuse("flip", "there, or one of set, clear, becomes: else nothing is wrong");
}

Model read_model(const std::string& path, std::uint64_t seed,
                 const std::vector<std::string>& places, const ProductFault& defaults) {
  std::ifstream in(path);
  if (!in) throw Refused("cannot be read");
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded()) throw Refused("is not JSON");
  Object object(json, "");
  Model model;
  model.seed = seed;
  model.name = object.text("class", {}, "");
  if (model.name.empty()) object.refuse("class", "the name of the class of faults");
  object.text("source", {}, "");
  const Json* faults = object.find("faults");
  if (faults == nullptr || !faults->is_array()) object.refuse("faults", "a list");
  object.close();
  for (std::size_t i = 0; i < faults->size(); ++i)
    read_fault(Object((*faults)[i], "faults[" + std::to_string(i) + "]"), places, defaults, model,
               number_format::hash(seed, i));
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
  } catch (const Refused& error) {
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

}  // namespace shakedown::faulty
