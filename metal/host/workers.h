// Threads that run unchecked threadgroups side by side.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace msl {

class Workers {
 public:
  // n_threads counts the thread that calls run.
  explicit Workers(int n_threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }
  // Calls work(0) here and work(1 .. size() - 1) on the others; returns when all have.
  void run(const std::function<void(int)>& work);

 private:
  void wait_for_work(int number);

  std::mutex mutex_;
  std::condition_variable began_, ended_;
  const std::function<void(int)>* work_ = nullptr;
  uint64_t round_ = 0;  // how often work began
  int running_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace msl
