// Copies from device memory to the host's and back, of words that are known.
#pragma once

#include "launch/node/soak/load.hpp"
#include "launch/node/soak/word_checker.hpp"

namespace shakedown::node {

class CopyLoad final : public Load {
 public:
  CopyLoad(const LoadSettings& settings, Device& device);

  const std::string& name() const override { return name_; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;

 private:
  /// One operation: there and back. Returns what is wrong in the end.
  WrongWords round_trip(const KnownWords& words);
  Mismatch mismatch_of(const WrongWords& wrong, const KnownWords& words);

  LoadSettings settings_;
  std::string name_ = "host copy";
  Device& device_;
  WordChecker checker_;
  Buffer source_, host_, target_;
  std::uint64_t operations_ = 0;
};

}  // namespace shakedown::node
