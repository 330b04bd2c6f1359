#include "training/step/parameter_norms.hpp"

#include <algorithm>
#include <numeric>

#include "common/error.hpp"
#include "common/kernels.hpp"

namespace shakedown::training {
namespace {

constexpr std::size_t kPiece = 16384;  // elements

template <class T>
Buffer on_device(Device& device, Stream& stream, const std::vector<T>& values) {
  Buffer buffer(device, values.size() * sizeof(T));
  if (!values.empty()) upload<T>(device, stream, buffer.data(), values);
  return buffer;
}

}  // namespace

std::vector<ParameterPiece> pieces_of(const ParameterTable& table, Range range) {
  std::vector<ParameterPiece> pieces;
  for (std::size_t p = 0; p < table.parameters().size(); ++p) {
    const Parameter& parameter = table.parameters()[p];
    const std::size_t end = std::min(parameter.offset + parameter.stored, range.end);
    for (std::size_t at = std::max(parameter.offset, range.begin); at < end; at += kPiece)
      pieces.push_back({p, {at - range.begin, std::min(kPiece, end - at), 0}});
  }
  return pieces;
}

ParameterNorms::ParameterNorms(const NormSettings& settings, bool of_weights, Device& device,
                               Stream& stream, const ParameterTable& table,
                               const UpdateKernels& kernels)
    : settings_(settings),
      of_weights_(of_weights),
      device_(device),
      stream_(stream),
      table_(table),
      kernels_(kernels),
      sums_(device, parameters() * sizeof(Squares)),
      trust_(device, parameters() * sizeof(float)) {
  describe_parameters();
}

void ParameterNorms::describe_parameters() {
  std::vector<std::uint8_t> adapted;
  std::vector<std::uint16_t> chunks(table_.stored_count() / kFlatAlignment, 0);
  for (const Parameter& p : table_.parameters()) {
    const auto index = static_cast<std::uint16_t>(adapted.size());
    adapted.push_back(p.shape.size() > 1 ? 1 : 0);
    const auto begin = chunks.begin() + static_cast<std::ptrdiff_t>(p.offset / kFlatAlignment);
    std::fill_n(begin, (p.stored + kFlatAlignment - 1) / kFlatAlignment, index);
  }
  adapted_ = on_device(device_, stream_, adapted);
  chunks_ = on_device(device_, stream_, chunks);
}

void ParameterNorms::allocate(const std::vector<Range>& ranges) {
  std::vector<NormPiece> pieces;
  std::vector<std::size_t> part_begins;
  struct Place {
    std::size_t parameter, element, index;  // of the piece in `pieces`
  };
  std::vector<Place> places;
  for (const Range& range : ranges) {
    part_begins.push_back(pieces.size());
    for (const ParameterPiece& found : pieces_of(table_, range)) {
      places.push_back({found.parameter, range.begin + found.piece.begin, pieces.size()});
      pieces.push_back(found.piece);
    }
  }
  part_begins.push_back(pieces.size());

  // a parameter's slots follow one another, in the order of its elements
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.parameter, a.element) < std::pair(b.parameter, b.element);
  });
  std::vector<std::uint32_t> first(parameters() + 1, 0);
  for (std::size_t slot = 0; slot < places.size(); ++slot) {
    pieces[places[slot].index].slot = slot;
    ++first[places[slot].parameter + 1];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());

  pieces_ = on_device(device_, stream_, pieces);
  first_ = on_device(device_, stream_, first);
  partials_ = Buffer(device_, pieces.size() * sizeof(Squares));
  parts_.clear();
  const auto* const on_device = static_cast<const NormPiece*>(pieces_.data());
  for (std::size_t i = 0; i < ranges.size(); ++i)
    parts_.push_back({ranges[i], {on_device + part_begins[i], on_device + part_begins[i + 1]}});
}

void ParameterNorms::measure(const std::vector<Share>& shares, const Weights& weights) {
  ENSURE(shares.size() == parts_.size(), "norms are of all that is updated here");
  auto* const partials = static_cast<Squares*>(partials_.data());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    ENSURE(shares[i].range == parts_[i].range, "norms of another range");
    const auto* const own =
        of_weights_ ? static_cast<const float*>(weights.master(shares[i].range).data) : nullptr;
    kernels_.sum_pieces(shares[i].gradient, own, parts_[i].pieces, partials, stream_);
  }
  const auto* const first = static_cast<const std::uint32_t*>(first_.data());
  kernels_.sum_parameters(partials, {first, parameters() + 1}, squares(), stream_);
}

void ParameterNorms::apply(StepScalars* scalars) {
  kernels_.apply_norms({squares(), parameters()}, settings_,
                       static_cast<const std::uint8_t*>(adapted_.data()),
                       static_cast<float*>(trust_.data()), scalars, stream_);
}

const std::uint16_t* ParameterNorms::parameters_from(std::size_t element) const {
  return static_cast<const std::uint16_t*>(chunks_.data()) + element / kFlatAlignment;
}

double ParameterNorms::bytes_moved(const std::vector<Share>& shares) const {
  std::size_t bytes = 0;
  for (const Share& share : shares)
    bytes += share.gradient.bytes() + (of_weights_ ? share.range.count() * sizeof(float) : 0);
  return static_cast<double>(bytes);
}

std::size_t ParameterNorms::bytes() const {
  std::size_t sum = 0;
  for (const Buffer* buffer : {&pieces_, &first_, &partials_, &sums_, &trust_, &adapted_, &chunks_})
    sum += buffer->bytes();
  return sum;
}

}  // namespace shakedown::training
