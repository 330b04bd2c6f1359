#include "tests/faulty/log.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace shakedown::faulty {
namespace {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A class's name is written without what JSON would escape.
std::string plain(const std::string& text) {
  std::string kept;
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= ' ' && c != '"' && c != '\\') kept += c;
  return kept;
}

class Log {
 public:
  Log(std::string path, const std::string& model, std::function<Counts()> counts)
      : path_(std::move(path)), model_(plain(model)), counts_(std::move(counts)) {
    started_ = unix_time();
    std::thread([this] {
      for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) write();
    }).detach();
  }

  void write() {
    const std::lock_guard lock(mutex_);
    const Counts now = counts_();
    if (written_ && std::memcmp(&now, &last_, sizeof(now)) == 0) return;
    if (first_flip_ == 0 && now.flips > 0) first_flip_ = unix_time();
    const std::string temporary = path_ + "." + std::to_string(getpid());
    std::FILE* file = std::fopen(temporary.c_str(), "w");
    if (file == nullptr) return;
    write_to(file, now);
    if (std::fclose(file) == 0 && std::rename(temporary.c_str(), path_.c_str()) == 0) {
      last_ = now;
      written_ = true;
    }
  }

 private:
  void write_to(std::FILE* file, const Counts& now) const {
    const auto count = [&](const char* key, std::uint64_t value) {
      std::fprintf(file, ",\"%s\":%llu", key, static_cast<unsigned long long>(value));
    };
    std::fprintf(file, "{\"class\":\"%s\",\"started\":%.3f", model_.c_str(), started_);
    count("products", now.products);
    count("wrong_products", now.wrong_products);
    count("flips", now.flips);
    count("copies", now.copies);
    count("collectives", now.collectives);
    if (first_flip_ > 0) std::fprintf(file, ",\"first_flip_at\":%.3f", first_flip_);
    if (now.first.is_set()) {
      const FirstFlip& first = now.first;
      std::fprintf(file,
                   ",\"first\":{\"product\":%llu,\"row\":%lld,\"column\":%lld,\"sm\":%d,"
                   "\"warp\":%d,\"lane\":%d,\"right\":\"0x%llx\",\"wrong\":\"0x%llx\"}",
                   static_cast<unsigned long long>(first.product),
                   static_cast<long long>(first.row), static_cast<long long>(first.column),
                   first.sm, first.warp, first.lane, static_cast<unsigned long long>(first.right),
                   static_cast<unsigned long long>(first.wrong));
    }
    std::fprintf(file, "}\n");
  }

  std::string path_, model_;
  std::function<Counts()> counts_;
  std::mutex mutex_;
  double started_ = 0, first_flip_ = 0;
  bool written_ = false;
  Counts last_{};
};

}  // namespace

void keep_log(const std::string& path, const std::string& model,
              const std::function<Counts()>& counts) {
  if (path.empty()) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    static Log* log = nullptr;
    log = new Log(path, model, counts);  // its thread needs it until the process is gone
    std::atexit([] { log->write(); });
  });
}

}  // namespace shakedown::faulty
