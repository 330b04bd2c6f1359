// Verified copies: host to device, within the device, and back, each checked where it arrives.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "launch/node/soak/known_words.hpp"
#include "launch/node/soak/load.hpp"

namespace shakedown::node {

enum class CopyWay { host_to_device, device_to_device, device_to_host };
const char* name_of(CopyWay way);  // "host to device"

struct CopySettings {
  std::size_t bytes = std::size_t{64} << 20;  // of a copy
  int retrials = 100;                         // of a copy that was wrong
};

/// One operation is a copy each way: pinned host memory, device, device, pinned host memory. Two
/// sources alternate, so what an earlier operation left cannot pass for a copy.
class CopyLoad : public Load {
 public:
  CopyLoad(Device& device, const LoadSettings& load, const CopySettings& settings);

  const std::string& name() const override { return name_; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  std::string summary() const override;

 protected:
  virtual void copy(CopyWay way, View to, ConstView from, Stream& stream);
  Device& device() { return device_; }

 private:
  struct Leg {
    CopyWay way;
    View from, to;
  };

  std::array<Leg, 3> legs_of(int source) const;
  WordErrors copy_and_check(const Leg& leg, const KnownWords& words);
  Mismatch describe(const Leg& leg, const KnownWords& words, const WordErrors& wrong);

  std::string name_ = "copy";
  Device& device_;
  LoadSettings load_;
  CopySettings settings_;
  std::unique_ptr<WordKernels> kernels_;
  std::unique_ptr<Stream> stream_;
  std::array<Buffer, 2> sources_;  // host
  std::array<KnownWords, 2> words_;
  Buffer near_, far_;  // device
  Buffer back_;        // host
  Buffer wrong_;       // WordErrors
  std::array<double, 3> bytes_{};
  std::uint64_t operations_ = 0;
};

/// With the fault where load.fault says so: a bit of what arrives on the device.
std::unique_ptr<CopyLoad> make_copy_load(Device& device, const LoadSettings& load,
                                         const CopySettings& settings);

}  // namespace shakedown::node
