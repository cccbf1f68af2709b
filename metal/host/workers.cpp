#include "metal/host/workers.h"

namespace msl {

Workers::Workers(int n_threads) {
  for (int i = 1; i < n_threads; i++) threads_.emplace_back([this, i] { wait_for_work(i); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  began_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Workers::run(const std::function<void(int)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    running_ = size() - 1;
    round_++;
  }
  began_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return running_ == 0; });
}

void Workers::wait_for_work(int number) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    began_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_) return;
    seen = round_;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    work(number);
    lock.lock();
    if (--running_ == 0) ended_.notify_one();
  }
}

}  // namespace msl
