// A call that may never return: of a file system whose server is gone, or of a driver that hangs.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

namespace shakedown::node {

/// What `call` returns; none when it has not by then. It goes on in a thread of its own that nobody
/// waits for, so it must own all that it uses. Rethrows what it throws.
template <class T>
std::optional<T> within(double seconds, std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready)
    return std::nullopt;
  return result.get();
}

}  // namespace shakedown::node
