// Where an error comes from: the same work again, where the error was and elsewhere.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/product_rig.hpp"

namespace shakedown::node {

inline constexpr const char* kRemapRows = "reset the GPU, which remaps rows; RMA if it comes back";

struct Attempts {
  int tried = 0, wrong = 0;
  bool operator==(const Attempts&) const = default;
};

/// Wrong ones of those tried; 0 of none.
double rate_of(const Attempts& attempts);
/// "3 of 100", or "not tried".
std::string text_of(const Attempts& attempts);
/// None: it was not tried.
void add(Attempts& attempts, std::optional<bool> wrong);

// Of a probe or a word of memory: by the processor and at the address of the error, by other
// processors (SMs) there, by that processor elsewhere, and on other GPUs of the same model: where
// they have it too, it is the program's.

/// Does work that was wrong once again; whether it is wrong by this processor at this address: 0 is
/// the error's own, others have the numbers from 1 on. None: it did not get to the processor.
using Retrial = std::function<std::optional<bool>(int processor, int address)>;

struct Evidence {
  Attempts same;              // processor and address of the error
  Attempts other_processors;  // at its address
  Attempts other_addresses;   // by its processor
  Attempts other_gpus;        // of two others, where there are any
};

/// `processors` may contain `processor`; `addresses`: how many others there are. Each of the three
/// is tried `repeats` times, and what does not get there is not counted as tried.
Evidence collect_evidence(const Retrial& wrong, int processor, std::span<const int> processors,
                          int addresses, int repeats = 100);

/// Pure. "sticks to SM 17: wrong in 100 of 100 there, 0 of 100 on other SMs, ..." `unit` names a
/// processor: "SM" or "core". An error is seen again where it occurs at a tenth of its highest rate
/// at least. A transient error is one all the same: it fails. What other GPUs have too is the
/// program's, and inconclusive.
Judgement place_error(const Evidence& evidence, const std::string& unit, int processor);

/// The jurors that try the error of another one: the next two.
std::vector<int> helpers_of(int juror, int jurors);

/// The first error of a call, placed on its GPU, and how to try it on others.
class PlacedError {
 public:
  explicit PlacedError(std::string unit) : unit_(std::move(unit)) {}

  /// Concludes on found[at] what the evidence shows, after what its cause says already. `task`:
  /// what repeats it; of the first error of a call alone.
  void place(std::vector<Mismatch>& found, std::size_t at, const Evidence& evidence, int processor,
             const Json& task);
  /// Places it anew by what other GPUs make of it, where there are any, and forgets it. Each helper
  /// tries a task by `attempt`. Collective of the jurors.
  void confer(const MpiSession& jurors, const std::function<Attempts(const Json& task)>& attempt,
              std::vector<Mismatch>& found);

 private:
  std::string unit_;
  std::string task_;  // empty: there is no error
  std::size_t at_ = 0;
  std::string before_;
  Evidence evidence_;
  int processor_ = 0;
};

// Of a wrong product: the same product again in other turns, with C elsewhere in memory, and
// without one SM after another.

/// What was tried of a tile that was wrong, and how often it was wrong.
struct ProductAttempts {
  Attempts same;                // the product as it was
  Attempts any;                 // the same: any tile of it
  Attempts place;               // in other turns: what is then where the tile was in the launch
  Attempts element;             // in other turns: the tile, where it is then
  Attempts elsewhere;           // with C elsewhere in its buffer
  int without = 0;              // SMs that were held, one after another; 0: not tried
  std::vector<int> cured_by{};  // those of them without which no tile was wrong
};

/// Pure. The SM is named where it is the only one without which all is right, whatever tiles were
/// wrong: blocks come to other SMs from launch to launch. Else the tile must have been wrong often.
/// What is wrong in other turns too is wrong by its data; what is wrong with C elsewhere too, by
/// the SM at its place of the launch; and the rest by the memory of C. `unit`: "SM".
Judgement place_product(const ProductAttempts& attempts, const std::string& unit);

/// `right` is by tile the hash that most have; none: not known. `same`: what the re-runs were. The
/// rig has the product's operands, and has them again afterwards.
ProductAttempts try_product(ProductRig& rig, std::int64_t tile,
                            std::span<const std::optional<std::uint64_t>> right, Attempts same,
                            const Stopped& stopped);

/// Keeps other work from one SM of a GPU while it lives. As with HeldSms, no memory is freed and no
/// kernel run for the first time meanwhile.
class HeldProcessor {
 public:
  HeldProcessor(Device& device, int processor);
  ~HeldProcessor();
  HeldProcessor(const HeldProcessor&) = delete;
  HeldProcessor& operator=(const HeldProcessor&) = delete;

  /// Whether it got to the SM.
  bool holds() const { return holds_; }

 private:
  std::unique_ptr<Stream> stream_;
  Buffer words_;  // of the host: HoldWords
  bool holds_ = false;
};

namespace gpu {
/// Enqueues a block that stays on the SM until words->stop, in pinned host memory.
void launch_hold_processor(HoldWords* words, int processor, Stream& stream);
}  // namespace gpu

}  // namespace shakedown::node
