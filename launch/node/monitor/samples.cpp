#include "launch/node/monitor/samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/nvml.hpp"
#include "common/text_table.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
namespace {

const std::vector<Column> kColumns{{"", "host", 10},  {"", "gpu", 3},     {"sm", "%", 3},
                                   {"mem", "%", 3},   {"used", "GiB", 5}, {"gpu", "C", 3},
                                   {"mem", "C", 3},   {"power", "W", 5},  {"sm", "MHz", 4},
                                   {"mem", "MHz", 4}, {"new", "ECC", 5},  {"nvlink", "out", 6},
                                   {"GB/s", "in", 6}, {"pcie", "out", 6}, {"GB/s", "in", 6}};
constexpr std::size_t kReasonsWidth = 22;

/// The host's own name, the end of one that is too long.
std::string short_name(const std::string& host) {
  const std::string name = host.substr(0, host.find('.'));
  constexpr std::size_t kWidth = 10;
  return name.size() <= kWidth ? name : name.substr(name.size() - kWidth);
}

std::string cell(Known<double> value, int digits = 0, double scale = 1) {
  return value ? fmt::format("{:.{}f}", *value * scale, digits) : "-";
}

std::string cell(Known<std::uint64_t> bytes, double scale) {
  return bytes ? cell(static_cast<double>(*bytes), 1, scale) : "-";
}

std::string pair_of(Known<std::uint64_t> corrected, Known<std::uint64_t> uncorrected) {
  const auto text = [](Known<std::uint64_t> count) {
    return count ? fmt::format("{}", *count) : std::string("-");
  };
  return corrected || uncorrected ? text(corrected) + "/" + text(uncorrected) : "-";
}

/// The reasons that fit, and the number of those that do not.
std::string reasons_of(const GpuReading& reading) {
  if (!reading.stalled.empty()) return "stalled";
  if (!reading.throttle_reasons) return "-";
  std::string text = text_of_throttle_reasons(reading.throttle_reasons);
  if (text.empty()) return "none";
  if (text.size() <= kReasonsWidth) return text;
  const std::size_t first = text.find(' ');
  const auto more = std::count(text.begin(), text.end(), ' ');
  return text.substr(0, first) + fmt::format(" +{}", more);
}

std::string with_last(std::string line, const std::string& last) {
  line.pop_back();
  return line + "  " + last + "\n";
}

Known<double> rate_gbs(Known<std::uint64_t> bytes, double seconds) {
  return bytes && seconds > 0 ? Known<double>(static_cast<double>(*bytes) / seconds / 1e9)
                              : std::nullopt;
}

}  // namespace

std::string monitor_heading(const std::string& time) {
  std::vector<Column> columns = kColumns;
  columns.front().over = time.c_str();
  return with_last(heading(columns), "throttle reasons");
}

std::string monitor_line(const std::string& host, const GpuReading& reading, const Growth& growth) {
  constexpr double kGib = 1.0 / (1ULL << 30U);
  return with_last(
      row(kColumns,
          {short_name(host), fmt::format("{}", reading.index), cell(reading.utilisation_percent),
           cell(reading.memory_utilisation_percent), cell(reading.memory_used_bytes, kGib),
           cell(reading.temperature_c), cell(reading.memory_temperature_c), cell(reading.power_w),
           cell(reading.sm_clock_mhz), cell(reading.memory_clock_mhz),
           pair_of(growth.ecc_corrected, growth.ecc_uncorrected), cell(growth.nvlink_sent_gbs, 1),
           cell(growth.nvlink_received_gbs, 1), cell(reading.pcie_sent_mbs, 2, 1e-3),
           cell(reading.pcie_received_mbs, 2, 1e-3)}),
      reasons_of(reading));
}

FIELDS_OF(HostSample, host, time, elapsed_s, cpu_s, reading_ms, read)

std::string text_of(const HostSample& sample) { return json_text(written(sample)); }
HostSample host_sample_of(const std::string& text) {
  return read_as<HostSample>(Json::parse(text));
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
