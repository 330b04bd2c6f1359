#include "training/step/optimizer.hpp"

#include <algorithm>
#include <numeric>

#include "common/ensure.hpp"
#include "common/kernels.hpp"
#include "common/options.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, OptimizerOptions& values) {
  options.heading("Optimizer");
  options
      .add("--optimizer,--opt", values.optimizer,
           "update rule; sgd and lars have momentum; lars adapts the rate of each parameter to its "
           "norm and its gradient's, except of norm parameters and biases, which do not decay")
      .one_of({"sgd", "lars", "adam", "adamw"});
  options
      .add("--learning-rate,--lr", values.learning_rate,
           "base learning rate, reached after warm-up")
      .at_least(0)
      .first();
  options.add("--momentum", values.momentum, "momentum of sgd and lars")
      .at_least(0)
      .below(1)
      .only_where("--optimizer", {"sgd", "lars"});
  options
      .add("--weight-decay,--wd", values.weight_decay,
           "weight decay: L2 penalty (sgd, lars, adam) or decoupled (adamw)")
      .at_least(0);
  options.add("--nesterov", values.nesterov, "use Nesterov momentum")
      .only_where("--optimizer", {"sgd", "lars"});
  options
      .add("--no-norm-decay", values.no_norm_decay,
           "exclude norm parameters and biases from weight decay")
      .only_where("--optimizer", {"sgd", "adam", "adamw"});
  options
      .add("--trust-coefficient", values.trust_coefficient,
           "trust coefficient of lars (\"eeta\" in MLPerf's reference)")
      .at_least(0)
      .only_where("--optimizer", {"lars"});
  options
      .add("--clip-grad-norm", values.clip_grad_norm,
           "largest Euclidean norm of all gradients, as torch.nn.utils.clip_grad_norm_ clips them; "
           "0: off")
      .at_least(0);
}

namespace {

UpdateRule rule_of(const OptimizerOptions& options) {
  const auto weight_decay = static_cast<float>(options.weight_decay);
  UpdateRule rule;
  if (options.optimizer == "lars") rule.kind = UpdateRule::lars;
  if (options.is_adam()) rule.kind = UpdateRule::adam;
  rule.of_sgd = {static_cast<float>(options.momentum), weight_decay, options.nesterov};
  rule.of_adam.weight_decay = weight_decay;
  rule.of_adam.decoupled = options.optimizer == "adamw";
  return rule;
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, Network& network,
                     const UpdateKernels& kernels)
    : options_(options),
      rule_(rule_of(options)),
      device_(network.device()),
      stream_(network.stream()),
      table_(network.table()),
      weights_(network.weights()),
      kernels_(kernels),
      recorder_(network.recorder()) {
  const bool lars = options.optimizer == "lars";
  if (options.no_norm_decay || lars) decayed_ = decay_flags();
  if (!options.needs_norms()) return;
  const NormSettings settings{static_cast<float>(options.clip_grad_norm),
                              static_cast<float>(options.trust_coefficient),
                              static_cast<float>(options.weight_decay)};
  norms_.emplace(settings, lars, device_, stream_, table_, kernels);
}

/// Norms and biases do not decay.
Buffer Optimizer::decay_flags() const {
  std::vector<std::uint8_t> decayed(table_.stored_count() / kFlatAlignment, 0);
  for (const Parameter& p : table_.parameters()) {
    if (p.shape.size() == 1) continue;
    const auto first = static_cast<std::ptrdiff_t>(p.offset / kFlatAlignment);
    const auto chunks =
        static_cast<std::ptrdiff_t>((p.stored + kFlatAlignment - 1) / kFlatAlignment);
    std::fill_n(decayed.begin() + first, chunks, std::uint8_t{1});
  }
  Buffer flags(device_, decayed.size());
  upload<std::uint8_t>(device_, stream_, flags.data(), decayed);
  return flags;
}

void Optimizer::allocate(const std::vector<Range>& ranges) {
  state_a_ = FlatBuffer();
  state_b_ = FlatBuffer();
  state_a_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
  if (options_.is_adam())
    state_b_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
  if (norms_) norms_->allocate(ranges);
}

std::vector<StateBuffer> Optimizer::state_buffers() {
  if (options_.is_adam()) return {{"exp_avg", &state_a_}, {"exp_avg_sq", &state_b_}};
  return {{"momentum_buffer", &state_a_}};
}

void Optimizer::reset() {
  for (const FlatBuffer* state : {&state_a_, &state_b_})
    device_.zero(state->memory().data, state->bytes(), stream_);
}

UpdateRange Optimizer::operands(const Share& share) const {
  const Range range = share.range;
  UpdateRange result;
  result.master = static_cast<float*>(weights_.master(range).data);
  const View copy = weights_.copy_of(range);
  result.compute = copy.data;
  result.compute_type = copy.type;
  for (const View& other : share.copies) {
    result.compute_type = other.type;
    result.copies[result.copy_count++] = other.data;
  }
  result.gradient = share.gradient.data;
  result.gradient_type = share.gradient.type;
  result.state_a = static_cast<float*>(state_a_.at(range).data);
  if (!state_b_.empty()) result.state_b = static_cast<float*>(state_b_.at(range).data);
  if (decayed_.bytes() > 0)
    result.decayed =
        static_cast<const std::uint8_t*>(decayed_.data()) + range.begin / kFlatAlignment;
  if (norms_) {
    result.tensors = norms_->parameters_from(range.begin);
    result.trust = norms_->trust();
  }
  result.count = range.count();
  return result;
}

/// Read and written: gradients, master weights, state, the rounded copy.
double Optimizer::bytes_moved(const Share& share) const {
  const std::size_t states = state_b_.empty() ? 1 : 2;
  const std::size_t floats = 2 * (1 + states) * share.range.count();  // read and written
  return static_cast<double>(floats * sizeof(float) + share.gradient.bytes() +
                             weights_.copy_of(share.range).bytes());
}

void Optimizer::measure_norms(const std::vector<Share>& shares) {
  if (!norms_) return;
  recorder_.begin(Phase::update);
  recorder_.run({"norms", -1, norms_->bytes_moved(shares)},
                [&] { norms_->measure(shares, weights_); });
}

void Optimizer::update(const std::vector<Share>& shares, StepScalars* scalars) {
  if (norms_) norms_->apply(scalars);
  recorder_.begin(Phase::update);
  for (const Share& share : shares)
    recorder_.run({options_.optimizer.c_str(), -1, bytes_moved(share)}, [&] {
      if (share.range.count() > 0) kernels_.update(operands(share), rule_, scalars, stream_);
    });
}

std::size_t Optimizer::bytes() const {
  return state_a_.bytes() + state_b_.bytes() + decayed_.bytes() + (norms_ ? norms_->bytes() : 0);
}

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

void declare_options(OptionSet& options, EmaOptions& values) {
  options.heading("Optimizer");
  options
      .add("--ema,--model-ema-decay", values.ema,
           "decay of an exponential moving average of the weights and running statistics, which is "
           "also validated, and saved by --save; at most (1 + t) / (10 + t) for the t-th average; "
           "0: off")
      .at_least(0)
      .below(1);
  options
      .add("--ema-every,--model-ema-steps", values.ema_every,
           "updates from one average to the next")
      .at_least(1)
      .only_with({"--ema"});
}

Ema::Ema(const EmaOptions& options, Device& device, Stream& stream, const Weights& weights,
         const UpdateKernels& kernels)
    : settings_{static_cast<float>(options.ema), options.ema_every},
      device_(device),
      stream_(stream),
      weights_(weights),
      kernels_(kernels),
      statistics_(device, weights.statistics().bytes()) {}

void Ema::allocate(const std::vector<Range>& ranges) {
  average_ = FlatBuffer();
  average_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
}

void Ema::reset() {
  for (const PlacedRange& placed : average_.layout()) {
    const View to = average_.at(placed.range);
    device_.copy(to.data, weights_.master(placed.range).data, to.bytes(), stream_);
  }
  device_.copy(statistics_.data(), weights_.statistics().data, statistics_.bytes(), stream_);
}

void Ema::update(const StepScalars* scalars) {
  for (const PlacedRange& placed : average_.layout())
    kernels_.average(average_.at(placed.range), weights_.master(placed.range), settings_, scalars,
                     stream_);
  kernels_.average(statistics(), weights_.statistics(), settings_, scalars, stream_);
}

}  // namespace shakedown::training
