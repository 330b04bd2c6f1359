// The stream that exchanges while another computes: or, without overlap, that one itself.
#pragma once

#include "training/exchange/strategy.hpp"

namespace shakedown::training {

class ExchangeStream {
 public:
  explicit ExchangeStream(const StrategyContext& context)
      : own_(context.options.no_overlap ? nullptr
                                        : context.device.make_stream(priority(context.options))),
        stream_(own_ ? *own_ : context.compute) {}

  Stream& operator*() const { return stream_; }
  Stream* operator->() const { return &stream_; }

 private:
  static StreamPriority priority(const StrategyOptions& options) {
    return options.comm_priority == "normal" ? StreamPriority::normal : StreamPriority::high;
  }

  std::unique_ptr<Stream> own_;
  Stream& stream_;
};

}  // namespace shakedown::training
