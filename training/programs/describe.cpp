#include "training/programs/describe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/programs/invariant.hpp"

namespace shakedown::training {
namespace {

std::string layer_row(const std::string& name, const std::string& output, double parameters,
                      double mflop, double activation_bytes) {
  return fmt::format("{:<24} {:>16} {:>12.0f} {:>10.1f} {:>11}\n", name, output, parameters, mflop,
                     activation_bytes > 0 ? readable_bytes(activation_bytes) : "");
}

std::string text_of(const ActivationShape& s) { return fmt::format("{} x {} x {}", s.c, s.h, s.w); }

/// One row per layer; the shape of its output.
class LayerTable {
 public:
  LayerTable(double bytes_per_element) : bytes_(bytes_per_element) {
    text_ = fmt::format("{:<24} {:>16} {:>12} {:>10} {:>11}\n", "layer (of one image)", "output",
                        "parameters", "MFLOP", "output");
  }
  ActivationShape conv(const ConvLayer& layer, const ActivationShape& x) {
    const ConvShape conv{x, layer.k, layer.kernel, layer.stride, layer.pad()};
    text_ += layer_row(fmt::format("{} {}x{}{}", layer.conv, layer.kernel, layer.kernel,
                                   layer.stride > 1 ? fmt::format("/{}", layer.stride) : ""),
                       text_of(conv.y()), static_cast<double>(conv.weight_count()) + 2.0 * layer.k,
                       conv.flop() / 1e6, bytes_ * static_cast<double>(conv.y().count()));
    return conv.y();
  }
  void line(const std::string& text) { text_ += text; }
  const std::string& text() const { return text_; }

 private:
  double bytes_;
  std::string text_;
};

std::string text_of_network(const Engine& engine) {
  const Network& network = engine.model.network();
  const NetworkSettings& s = network.settings();
  const ParameterTable& table = network.table();
  const Layers& layers = network.layers();
  const double element = static_cast<double>(size_of(compute_type(s.precision)));

  LayerTable list(element);
  ActivationShape x = list.conv(layers.stem, {1, 3, s.image_size, s.image_size});
  x = pooled(x);
  list.line(layer_row("maxpool 3x3/2", text_of(x), 0, 0, element * static_cast<double>(x.count())));
  for (const ResidualBlock& block : layers.blocks) {
    const ActivationShape input = x;
    for (const ConvLayer& layer : block.path) x = list.conv(layer, x);
    if (block.shortcut) list.conv(*block.shortcut, input);
  }
  list.line(layer_row("fc", fmt::format("{}", s.classes),
                      static_cast<double>(layers.features + 1) * s.classes,
                      2e-6 * layers.features * s.classes, 4.0 * s.classes));

  const FlopCount flop = flop_per_image(layers, s.image_size, s.classes);
  const auto bytes = [](std::size_t count) { return readable_bytes(static_cast<double>(count)); };
  std::string text = list.text();
  text += fmt::format(
      "\n{}: {} tensors, {} parameters ({} in float32), {} running statistics\n"
      "one image: {:.3f} GFLOP forward, {:.3f} GFLOP forward and backward\n",
      s.architecture.name, table.parameters().size(), table.payload_count(),
      bytes(table.payload_count() * sizeof(float)), 2 * table.statistics().size(),
      flop.forward / 1e9, flop.training / 1e9);
  std::size_t unshared = 0;
  for (const Slot& slot : network.plan().slots()) unshared += slot.bytes();
  text += fmt::format(
      "\nmemory per rank, batch {}, {}:\n"
      "  weights, gradients, statistics  {}\n"
      "  optimizer state{}  {}\n"
      "  activations and their gradients {} (tensors sharing bytes by lifetime;\n"
      "                                  {} if each had its own, {} at least)\n",
      s.batch_size, name_of(s.precision), bytes(network.weights().bytes()),
      engine.settings().accumulate > 1 ? ", sums      " : "              ",
      bytes(engine.model.optimizer_bytes() + engine.step.sum_bytes()),
      bytes(network.plan().bytes()), bytes(unshared), bytes(network.plan().lower_bound()));

  const std::vector<Range> buckets = engine.step.strategy().buckets();
  if (buckets.empty()) return text;
  text += "\nbuckets, in the order of exchange (bytes of the payload in float32):\n";
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    std::size_t tensors = 0;
    for (const Parameter& p : table.parameters())
      tensors += p.offset >= buckets[i].begin && p.offset < buckets[i].end ? 1 : 0;
    text += fmt::format("  {:>2} {:>12} bytes, {} tensors\n", i,
                        table.payload_in(buckets[i]) * sizeof(float), tensors);
  }
  return text;
}

}  // namespace

ExitCode describe(const Engine& engine, const MpiSession& session) {
  say(session, text_of_network(engine));
  return ExitCode::pass;
}

std::string text_of_ranks(const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> nodes;
  for (const std::string& host : hosts)
    if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
  std::string names =
      fmt::format("{}", fmt::join(std::span(nodes).first(std::min(nodes.size(), kNamed)), ", "));
  if (nodes.size() > kNamed) names += fmt::format(" and {} more", nodes.size() - kNamed);
  return fmt::format("{} rank{} on {} node{} ({})", hosts.size(), hosts.size() == 1 ? "" : "s",
                     nodes.size(), nodes.size() == 1 ? "" : "s", names);
}

std::string text_of_machine(const Backend& backend, const std::vector<std::string>& hosts) {
  return fmt::format("on {}, {} ({}), {}", text_of_ranks(hosts), backend.remark,
                     backend.world->transport(), backend.device->identity().model);
}

std::string headline(const Engine& engine, const Backend& backend,
                     const std::vector<std::string>& hosts, const std::string& data) {
  const NetworkSettings& s = engine.settings().network;
  const int accumulate = engine.settings().accumulate;
  std::string batch = fmt::format("batch {} per rank", s.batch_size);
  if (accumulate > 1) batch += fmt::format(" x {} micro-batches", accumulate);
  std::string text = wrapped(
      fmt::format("train: {}, {}, {}, {}, {} globally, {}x{} pixels, {}", s.architecture.name,
                  name_of(s.precision), engine.settings().strategy.strategy, batch,
                  static_cast<long>(s.batch_size) * accumulate * engine.step.ranks_computing(),
                  s.image_size, s.image_size, data),
      2);
  if (const std::string shards = text_of_shards(engine); !shards.empty()) text += "\n" + shards;
  text += "\n" + wrapped(text_of_machine(backend, hosts), 2);
  const std::string why = engine.step.why_no_graph();
  if (backend.kind == BackendKind::gpu && !why.empty())
    text += "\nsteps are not CUDA graphs: " + why;
  return text;
}

std::string text_of_start(const Engine& engine) {
  const Fused fused = engine.model.network().fused();
  const LoadRemarks& remarks = engine.model.load_remarks();
  std::string text = remarks.seeded;
  if (!remarks.ignored.empty()) text += (text.empty() ? "" : "\n") + remarks.ignored;
  if (fused.norms == 0 || !engine.step.computes()) return text;  // no such choice
  if (!text.empty()) text += "\n";
  text += fmt::format("batch-norm statistics fused into {} of {} convolutions", fused.statistics,
                      fused.norms);
  if (fused.reductions > 0)
    text += fmt::format(
        ", backward reductions into {} of {}, {} norms through the Gram matrix of their "
        "convolution's input (see --fusion)",
        fused.gradients, fused.reductions, fused.gram);
  return text;
}

}  // namespace shakedown::training
