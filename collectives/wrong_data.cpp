#include "collectives/wrong_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace shakedown::collectives {

using operands::Decoded;
using operands::Region;
using operands::WrongData;

namespace {

constexpr std::size_t kFetchBytes = 4096;
constexpr std::size_t kLineBytes = 128;

/// A slice that decides where the whole region, of which parts may be wrong in different ways,
/// does not.
Region slice(const Region& region, std::size_t first, std::size_t count, std::size_t size) {
  Region part = region;
  part.position += first;
  part.found.assign(region.found.begin() + static_cast<std::ptrdiff_t>(first),
                    region.found.begin() + static_cast<std::ptrdiff_t>(first + count));
  if (!region.before.empty())
    part.before.assign(region.before.begin() + static_cast<std::ptrdiff_t>(first),
                       region.before.begin() + static_cast<std::ptrdiff_t>(first + count));
  if (region.line_unit >= 0)
    part.line_unit = static_cast<int>(
        (static_cast<std::size_t>(region.line_unit) + first * size / operands::kUnitBytes) %
        (kLineBytes / operands::kUnitBytes));
  return part;
}

void add_region(const Operands& o, const Region& region, Diagnosis& diagnosis) {
  const auto decoded = operands::decode(o, region);
  if (!decoded) return;
  const std::size_t size = size_of(o.type);
  const std::size_t least = operands::decodable_bytes(o) / size;
  if (decoded->kind != WrongData::unknown || region.found.size() <= least)
    return diagnosis.add(*decoded);
  for (std::size_t i = 0; i < region.found.size(); i += least) {
    const auto part =
        operands::decode(o, slice(region, i, std::min(least, region.found.size() - i), size));
    if (part) diagnosis.add(*part);
  }
}

}  // namespace

Region fetch(const Received& r, const SourceRange& range, std::size_t begin, std::size_t count,
             Device& device, Stream& stream) {
  const std::size_t size = size_of(r.data.type);
  Region region{.source = range.source,
                .position = range.position + (begin - range.begin),
                .found = {},
                .before = {},
                .extent = r.extent,
                .part = r.part,
                .earlier = r.earlier};
  const View view = r.data.slice(begin, count);
  const auto bytes = download<unsigned char>(device, stream, view.data, view.bytes());
  region.found.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(&region.found[i], bytes.data() + i * size, size);

  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  region.line_unit =
      address % operands::kUnitBytes == 0 && region.position * size % operands::kUnitBytes == 0
          ? static_cast<int>(address % kLineBytes / operands::kUnitBytes)
          : -1;

  const auto sent = reinterpret_cast<std::uintptr_t>(r.sent.data);
  if (r.sent.count == 0 || address + view.bytes() <= sent || address >= sent + r.sent.bytes())
    return region;
  const std::uint64_t poison = number_format::low_bits(~0ULL, static_cast<int>(8 * size));
  for (std::size_t i = 0; i < count; ++i) {  // in place: what this rank sent was there
    const std::uintptr_t at = address + i * size;
    region.before.push_back(at < sent || at >= sent + r.sent.bytes()
                                ? poison
                                : input_bits(r.operands, r.rank, (at - sent) / size));
  }
  return region;
}

void Diagnosis::add(const Decoded& region) {
  Row& row = rows_[static_cast<std::size_t>(region.kind)];
  if (row.regions++ == 0) row.first = region;
}

void Diagnosis::add(const Diagnosis& other) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].regions == 0) rows_[i].first = other.rows_[i].first;
    rows_[i].regions += other.rows_[i].regions;
  }
}

std::uint64_t Diagnosis::regions() const {
  std::uint64_t all = 0;
  for (const Row& row : rows_) all += row.regions;
  return all;
}

const Decoded& Diagnosis::foremost() const {
  const auto known =
      std::max_element(rows_.begin(), rows_.end() - 1,
                       [](const Row& a, const Row& b) { return a.regions < b.regions; });
  return known->regions > 0 ? known->first : rows_.back().first;
}

Diagnosis diagnose(const Received& r, const Mismatches& mismatches, int most_regions,
                   Device& device, Stream& stream) {
  Diagnosis diagnosis;
  if (mismatches.wrong == 0 || most_regions < 1) return diagnosis;
  const std::size_t step =
      std::max(kFetchBytes, operands::decodable_bytes(r.operands)) / size_of(r.data.type);
  const std::size_t first = static_cast<std::size_t>(mismatches.first) / step;
  const std::size_t last = static_cast<std::size_t>(mismatches.last) / step;
  const std::size_t looks = std::min(last - first + 1, static_cast<std::size_t>(most_regions));
  for (std::size_t look = 0; look < looks; ++look) {
    const std::size_t at = first + (looks == 1 ? 0 : look * (last - first) / (looks - 1));
    for (const SourceRange& range : r.ranges) {
      const std::size_t begin = std::max(range.begin, at * step);
      const std::size_t end = std::min(range.begin + range.count, (at + 1) * step);
      if (begin < end)
        add_region(r.operands, fetch(r, range, begin, end - begin, device, stream), diagnosis);
    }
  }
  return diagnosis;
}

std::string text_of(const Diagnosis& diagnosis) {
  const Decoded& foremost = diagnosis.foremost();
  const std::uint64_t alike = diagnosis.regions(foremost.kind);
  const std::uint64_t all = diagnosis.regions();
  return fmt::format("{}{}; {}", operands::text_of(foremost),
                     alike == all ? "" : fmt::format(" in {} of {} regions", alike, all),
                     operands::cause_of(foremost.kind));
}

Json fields_of(const Diagnosis& diagnosis) {
  Json fields = Json::object();
  for (const WrongData kind : operands::all_wrong_data())
    fields[fmt::format("wrong_{}", operands::name_of(kind))] = diagnosis.regions(kind);
  const Decoded& foremost = diagnosis.foremost();
  if (foremost.torn_bytes > 0) fields["wrong_torn_bytes"] = foremost.torn_bytes;
  if (foremost.from_rank >= 0) fields["wrong_from_rank"] = foremost.from_rank;
  if (foremost.from_offset != 0) fields["wrong_from_offset"] = foremost.from_offset;
  if (foremost.age > 0) fields["wrong_age"] = foremost.age;
  if (foremost.chance_log2 < 0) fields["wrong_chance_log2"] = foremost.chance_log2;
  return fields;
}

}  // namespace shakedown::collectives
