// Collectives of all ranks with words whose result is known to the bit.
#pragma once

#include <functional>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/word_checker.hpp"

namespace shakedown::node {

/// Its run() is collective, on the thread that made MPI, and ends when one rank's time is over.
class CollectiveLoad final : public Load {
 public:
  CollectiveLoad(const LoadSettings& settings, Backend& backend);

  const std::string& name() const override { return name_; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;

 private:
  /// A result is in pieces of share_ words.
  struct Operation {
    const char* name;
    std::uint64_t pieces;
    bool from_each;  // piece p comes from rank p alone
    std::function<void(View send, View recv, Stream& stream)> start;
    std::function<KnownWords(std::uint64_t piece)> expected;
  };
  std::vector<Operation> operations(std::uint64_t seed, int root);
  /// Returns what is wrong on this rank.
  WordErrors perform(const Operation& operation, std::uint64_t seed);
  Mismatch mismatch_of(const Operation& operation, const WordErrors& wrong);

  LoadSettings settings_;
  std::string name_ = "collective";
  Backend& backend_;
  std::uint64_t ranks_;
  std::uint64_t rank_;
  std::size_t share_;  // words that a rank sends to each other one
  WordChecker checker_;
  Buffer send_, recv_;
  std::unique_ptr<Event> done_;
  std::uint64_t performed_ = 0;
};

}  // namespace shakedown::node
