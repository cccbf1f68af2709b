// Settings, counts and planted failures, also for Python (tests/support/sim_metal.py).
#include <algorithm>
#include <cstring>
#include <utility>

#include "simulated.h"

namespace sim {
namespace {

std::mutex mutex;
std::vector<std::string> misuses;
std::map<std::string, int> counts;
Settings current;
struct Failure {
  int left = 0, code = 0;
  std::string words;
} failure;

}  // namespace

void note(const std::string& what) {
  const std::lock_guard lock(mutex);
  misuses.push_back(what);
}

void misuse(const std::string& what) {
  note(what);
  throw Misuse(what);
}

std::vector<std::string> take_misuses() {
  const std::lock_guard lock(mutex);
  return std::exchange(misuses, {});
}

int count(const std::string& what) {
  const std::lock_guard lock(mutex);
  return counts[what];
}

void add(const std::string& what, int by) {
  const std::lock_guard lock(mutex);
  counts[what] += by;
}

Settings settings() {
  const std::lock_guard lock(mutex);
  return current;
}

void set(const Settings& settings) {
  const std::lock_guard lock(mutex);
  current = settings;
}

bool is_checked(const std::string& order) { return order.find("unchecked") == std::string::npos; }

void fail_command_buffer(int n, int code, const std::string& words) {
  const std::lock_guard lock(mutex);
  failure = {n, code, words};
}

bool planted_failure(int* code, std::string* words) {
  const std::lock_guard lock(mutex);
  if (failure.left == 0 || --failure.left > 0) return false;
  *code = failure.code;
  *words = failure.words;
  return true;
}

}  // namespace sim

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

// Texts are in `out`, cut to its size; lines of them.
static void put(const std::string& text, char* out, size_t size) {
  std::strncpy(out, text.c_str(), size - 1);
  out[size - 1] = 0;
}

SIM_EXPORT void sim_metal_take_misuses(char* out, size_t size) {
  std::string all;
  for (const std::string& m : sim::take_misuses()) all += m + "\n";
  put(all, out, size);
}

SIM_EXPORT void sim_metal_live(char* out, size_t size) {
  std::string all;
  for (const auto& [name, n] : sim::live_objects()) all += name + " " + std::to_string(n) + "\n";
  put(all, out, size);
}

SIM_EXPORT int sim_metal_count(const char* what) { return sim::count(what); }

SIM_EXPORT void sim_metal_order(const char* order, uint64_t seed) {
  sim::Settings s = sim::settings();
  s.order = order;
  s.seed = seed;
  sim::set(s);
}

SIM_EXPORT void sim_metal_machine(const char* system, uint64_t working_set, uint64_t max_buffer, int apple,
                                  int gpu) {
  sim::Settings s = sim::settings();
  s.system = system;
  s.working_set_bytes = working_set;
  s.max_buffer_bytes = max_buffer;
  s.is_apple_silicon = apple != 0;
  s.has_gpu = gpu != 0;
  sim::set(s);
}

SIM_EXPORT void sim_metal_fail(int n, int code, const char* words) {
  sim::fail_command_buffer(n, code, words);
}
SIM_EXPORT void sim_metal_press(unsigned long level) { sim::press(level); }
