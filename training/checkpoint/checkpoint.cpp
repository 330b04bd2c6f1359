#include "training/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

/// JSON has no numbers that are not finite: they are null.
double number_of(const Json& json) { return json.is_null() ? NAN : json.get<double>(); }

Json json_of(const TrainingPosition& p) {
  return {{"epoch", p.epoch},
          {"update", p.update},
          {"images", p.images},
          {"seconds", p.seconds},
          {"skipped_before", p.skipped_before},
          {"best_top1", p.best_top1}};
}

TrainingPosition position_of(const Json& json) {
  return {json.at("epoch"),   json.at("update"),         json.at("images"),
          json.at("seconds"), json.at("skipped_before"), json.at("best_top1")};
}

Json json_of(const InputTimes& input) {
  return {{"stall_s", input.stall_s},
          {"open_s", input.stages.open_s},
          {"read_s", input.stages.read_s},
          {"decode_s", input.stages.decode_s},
          {"augment_s", input.stages.augment_s},
          {"copy_s", input.copy_s},
          {"device_decode_s", input.device_decode_s},
          {"images", input.images},
          {"device_images", input.device_images}};
}

InputTimes input_of(const Json& json) {
  return {json.at("stall_s"),
          {json.at("open_s"), json.at("read_s"), json.at("decode_s"), json.at("augment_s")},
          json.at("copy_s"),
          json.at("device_decode_s"),
          json.at("images"),
          json.at("device_images")};
}

Json json_of(const RankNumbers& rank) {
  const auto& [scalars, metrics, input] = rank;
  return {{"learning_rate", scalars.learning_rate},
          {"loss_scale", scalars.loss_scale},
          {"updates", scalars.updates},
          {"skipped", scalars.skipped},
          {"since_rescale", scalars.since_rescale},
          {"grad_norm", scalars.grad_norm},
          {"loss_sum", metrics.loss_sum},
          {"top1", metrics.top1},
          {"top5", metrics.top5},
          {"samples", metrics.samples},
          {"input", json_of(input)}};
}

RankNumbers rank_of(const Json& json) {
  RankNumbers rank;
  rank.scalars.learning_rate = json.at("learning_rate");
  rank.scalars.loss_scale = json.at("loss_scale");
  rank.scalars.updates = json.at("updates");
  rank.scalars.skipped = json.at("skipped");
  rank.scalars.since_rescale = json.at("since_rescale");
  rank.scalars.grad_norm = static_cast<float>(number_of(json.at("grad_norm")));
  rank.metrics = {number_of(json.at("loss_sum")), json.at("top1"), json.at("top5"),
                  json.at("samples")};
  rank.input = input_of(json.at("input"));
  return rank;
}

Json json_of(const std::vector<std::pair<std::string, std::string>>& texts) {
  Json json = Json::object();
  for (const auto& [name, text] : texts) json[name] = text;
  return json;
}

std::vector<std::pair<std::string, std::string>> texts_of(const Json& json) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [name, text] : json.items()) texts.emplace_back(name, text);
  return texts;
}

class Hash {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, from + at, std::min(sizeof word, bytes - at));
      value_ = (value_ ^ word) * 0x100000001B3U;
      value_ ^= value_ >> 29;  // or the upper bits would reach no lower one
    }
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325U;
};

}  // namespace

std::string text_of(const CheckpointState& state) {
  Json json{{"position", json_of(state.position)},     {"fixed", json_of(state.facts.fixed)},
            {"options", json_of(state.facts.options)}, {"first_computing", state.first_computing},
            {"bad_images", state.bad_images},          {"ranks", Json::array()}};
  for (const RankNumbers& rank : state.ranks) json["ranks"].push_back(json_of(rank));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

CheckpointState state_of(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    CheckpointState state{position_of(json.at("position")),
                          {texts_of(json.at("fixed")), texts_of(json.at("options"))},
                          json.at("first_computing"),
                          {},
                          json.at("bad_images")};
    for (const Json& rank : json.at("ranks")) state.ranks.push_back(rank_of(rank));
    return state;
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("its training state is not understood: {}", error.what()));
  }
}

std::string checksum_of(const std::string& state, const std::vector<Tensor>& tensors) {
  Hash hash;
  hash.add(state.data(), state.size());
  for (const Tensor& tensor : tensors) {
    hash.add(tensor.name.data(), tensor.name.size());
    hash.add(tensor.values.data(), tensor.values.size() * sizeof(float));
    for (const std::int64_t integer : tensor.integers) {
      const auto rounded = static_cast<float>(integer);  // as version 0.2 kept and hashed it
      if (rounded < 0x1p63F && static_cast<std::int64_t>(rounded) == integer)
        hash.add(&rounded, sizeof rounded);
      else
        hash.add(&integer, sizeof integer);
    }
  }
  return hash.text();
}

}  // namespace shakedown::training
