#include "launch/node/monitor/host_sample.hpp"

#include <nlohmann/json.hpp>

#include "launch/node/health/facts/gpu_counters.hpp"
#include "launch/node/health/facts/health_record.hpp"

namespace shakedown::node {
namespace {

Known<double> rate_gbs(Known<std::uint64_t> bytes, double seconds) {
  return bytes && seconds > 0 ? Known<double>(static_cast<double>(*bytes) / seconds / 1e9)
                              : std::nullopt;
}

}  // namespace

std::string text_of(const HostSample& sample) {
  return json_text({{"host", sample.host},
                    {"time", sample.time},
                    {"elapsed_s", sample.elapsed_s},
                    {"reading_ms", sample.reading_ms},
                    {"cpu_s", sample.cpu_s},
                    {"read", to_json(sample.read)}});
}

HostSample host_sample_of(const std::string& text) {
  const Json json = Json::parse(text);
  return {json["host"],  json["time"],       json["elapsed_s"],
          json["cpu_s"], json["reading_ms"], host_gpus_of(json["read"])};
}

Growth growth(const GpuReading& before, const GpuReading& now, double seconds) {
  return {rate_gbs(grown(before.nvlink_sent_bytes, now.nvlink_sent_bytes), seconds),
          rate_gbs(grown(before.nvlink_received_bytes, now.nvlink_received_bytes), seconds),
          grown(before.volatile_.corrected, now.volatile_.corrected),
          grown(before.volatile_.uncorrected, now.volatile_.uncorrected)};
}

Json record_of(const HostSample& sample, const GpuReading& reading, const Growth& growth) {
  Json fields = health_record(sample.host, sample.time, sample.reading_ms, reading);
  if (growth.nvlink_sent_gbs) fields["nvlink_sent_gbs"] = *growth.nvlink_sent_gbs;
  if (growth.nvlink_received_gbs) fields["nvlink_received_gbs"] = *growth.nvlink_received_gbs;
  return fields;
}

}  // namespace shakedown::node
