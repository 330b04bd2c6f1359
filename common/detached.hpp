// A call that may never return: of a file system whose server is gone, or of a driver that hangs.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <thread>

namespace shakedown {

/// Starts `call` in a thread of its own that nobody waits for: unlike std::async's, the future may
/// be given up. `call` must own all that it uses.
template <class T>
std::future<T> start_detached(std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  return result;
}

}  // namespace shakedown
