// Where an error comes from: the same work again, a hundred times each, by the processor and at the
// address of the error, by other processors (SMs) there, by that processor elsewhere, and on other
// GPUs of the same model: where they have it too, it is the program's.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "launch/node/soak/load.hpp"

namespace shakedown::node {

/// Does work that was wrong once again; whether it is wrong by this processor at this address: 0 is
/// the error's own, others have the numbers from 1 on. None: it did not get to the processor.
using Retrial = std::function<std::optional<bool>(int processor, int address)>;

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

enum class Culprit {
  processor,  // this SM, wherever its data lies
  address,    // this address, whichever SM uses it
  pair,       // only this SM at this address
  gpu,        // all SMs and addresses of this GPU
  program,    // other GPUs too: not this GPU's matter
  transient,  // none of them, again
  unknown,    // could not be tried
};

/// "sticks to SM 17: wrong in 100 of 100 there, 0 of 100 on other SMs, ..."
struct Placing : Judgement {
  Culprit culprit = Culprit::unknown;
};

/// Pure. `unit` names a processor: "SM" or "core". An error is seen again where it occurs at a
/// tenth of its highest rate at least. A transient error is one all the same: it fails.
Placing place_error(const Evidence& evidence, const std::string& unit, int processor);

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

}  // namespace shakedown::node
