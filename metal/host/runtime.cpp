#include "metal/host/runtime.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>

#include "metal/host/internal.h"
#include "metal/host/workers.h"

namespace msl {
namespace {

std::map<std::string, Kernel, std::less<>>& kernels(bool checked) {
  static std::map<std::string, Kernel, std::less<>> all[2];
  return all[checked];
}

std::string place_of(const Site& site) { return std::string(site.file) + ":" + std::to_string(site.line); }

struct sigaction before[2];

void on_signal(int number, siginfo_t* info, void* context) {
  if (!the_group || !the_group->running) {  // not ours: as it was before
    sigaction(number, &before[number == SIGBUS], nullptr);
    return;
  }
  Group& g = group();
#if defined(__x86_64__) && defined(__linux__)
  g.fault.instruction =
      reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[16]);  // rip
#else
  (void)context;
  g.fault.instruction = nullptr;
#endif
  g.fault.address = info->si_addr;
  siglongjmp(g.escape, 1);
}

void take_signals() {
  static thread_local std::vector<char> stack(64 << 10);
  stack_t own = {};
  own.ss_sp = stack.data();
  own.ss_size = stack.size();
  sigaltstack(&own, nullptr);
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
  });
}

void take_memory(Group& g) {
  if (g.stacks) return;
  constexpr size_t kAll = kStackBytes * kMaxThreads;
  g.stacks = static_cast<char*>(
      mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (g.stacks == MAP_FAILED) throw std::bad_alloc();
  for (size_t i = 0; i < kMaxThreads; i++) mprotect(g.stacks + i * kStackBytes, 4096, PROT_NONE);
  g.memory = static_cast<char*>(
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (g.memory == MAP_FAILED) throw std::bad_alloc();
  std::memset(g.memory, 0xff, kArenaBytes);
}

// Room for an array of threadgroup memory, with a guard behind it that is not counted. Null: over 32 KB.
char* allot(Group& g, const void* declaration, size_t size, const Site& site) {
  const size_t rounded = (size + 15) / 16 * 16;
  if (g.used + rounded > kThreadgroupMemoryBytes) return nullptr;
  g.used += rounded;
  const size_t begin = g.allotted;
  if (begin + rounded + kArrayGuard > kArenaBytes) return nullptr;
  g.allotted += rounded + kArrayGuard;
  g.arrays.push_back({declaration, begin, begin + size, site});
  return g.memory + begin;
}

std::string over_32_kb(const Group& g, size_t more) {
  return "takes " + std::to_string(g.used + more) + " bytes of threadgroup memory, at most " +
         std::to_string(kThreadgroupMemoryBytes) + " are there";
}

// Without the compiler's reports: an array whose guard has changed.
std::string written_beside(const Group& g) {
  for (const Array& a : g.arrays) {
    const size_t end = (a.end + 15) / 16 * 16 + kArrayGuard;
    for (size_t i = a.end; i < end; i++) {
      if (static_cast<unsigned char>(g.memory[i]) != 0xff) {
        return std::string(g.dispatch->kernel->name) + ": " + place_of(a.site) +
               ": something wrote behind this array of threadgroup memory";
      }
    }
  }
  return "";
}

// Puts items 0 .. n - 1 in the schedule's order; the random one takes them in strides from anywhere on, which
// costs one draw.
struct Order {
  Schedule schedule;
  uint64_t state;

  uint64_t draw() {  // splitmix64
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  void arrange(int* items, int n) {
    if (schedule != Schedule::kRandom) {
      for (int i = 0; i < n; i++) items[i] = schedule == Schedule::kReverse ? n - 1 - i : i;
      return;
    }
    const uint64_t drawn = draw();
    const auto size = static_cast<uint32_t>(n);
    uint32_t at = static_cast<uint32_t>(drawn) % size, step = static_cast<uint32_t>(drawn >> 32) % size | 1;
    while (step > 1 && std::gcd(step, size) != 1) step--;
    for (int i = 0; i < n; i++) {
      items[i] = static_cast<int>(at);
      at += step;
      while (at >= size) at -= size;
    }
  }
};

bool is_same(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file));
}

// Runs a simdgroup until none of its lanes can go on by itself. False: an error.
bool advance(Group& g, int s, Order& order) {
  Simdgroup& simd = g.simdgroups[s];
  Fiber* lanes = g.fibers + 32 * s;
  for (;;) {
    int lane[32], at_simd = 0;
    order.arrange(lane, simd.n_lanes);
    for (int i = 0; i < simd.n_lanes; i++) {
      Fiber& f = lanes[lane[i]];
      if (f.state == State::kReady) resume(f);
      if (!g.error.empty()) return false;
      at_simd += f.state == State::kAtSimd;
    }
    if (at_simd == 0) return true;
    const Fiber* first =
        std::find_if(lanes, lanes + simd.n_lanes, [](const Fiber& f) { return f.state == State::kAtSimd; });
    for (int i = 0; i < simd.n_lanes; i++) {
      const Fiber& f = lanes[i];
      const bool same =
          f.state == State::kAtSimd && f.operation == first->operation && is_same(*f.site, *first->site);
      if (same) continue;
      g.error = where(*first, *first->site) + "an operation of the simdgroup is reached by " +
                std::to_string(at_simd) + " of its " + std::to_string(simd.n_lanes) + " lanes; lane " +
                std::to_string(i) + (f.state == State::kEnded ? " has ended" : " is at " + place_of(*f.site));
      return false;
    }
    simd.epoch++;
    for (int i = 0; i < simd.n_lanes; i++) lanes[i].state = State::kReady;
  }
}

void run_threads(Group& g, Order& order) {
  const int n_simd = (g.n_threads + 31) / 32;
  int simdgroups[kMaxThreads / 32];
  for (;;) {
    order.arrange(simdgroups, n_simd);
    for (int i = 0; i < n_simd; i++) {
      if (!advance(g, simdgroups[i], order)) return;
    }
    const auto is_at = [](State state) { return [state](const Fiber& f) { return f.state == state; }; };
    const Fiber *end = g.fibers + g.n_threads,
                *waits = std::find_if(g.fibers, static_cast<Fiber*>(g.fibers + g.n_threads),
                                      is_at(State::kAtBarrier));
    if (waits == end) return;
    for (const Fiber* f = g.fibers; f < end; f++) {
      if (f->state == State::kAtBarrier && is_same(*f->site, *waits->site)) continue;
      g.error = where(*waits, *waits->site) + "this barrier is not reached by all threads; thread " +
                std::to_string(f->thread.index) +
                (f->state == State::kEnded ? " has ended" : " is at " + place_of(*f->site));
      return;
    }
    g.barrier++;
    for (int s = 0; s < n_simd; s++) g.simdgroups[s].epoch = 0;
    for (int i = 0; i < g.n_threads; i++) g.fibers[i].state = State::kReady;
  }
}

void run_group(Group& g, metal::uint3 at, Order& order) {
  const Dispatch& d = *g.dispatch;
  const metal::uint3 size(d.threads[0], d.threads[1], d.threads[2]);
  g.n_threads = static_cast<int>(size.x * size.y * size.z);
  g.barrier = 0;
  g.run++;
  std::memset(g.memory, 0xff, g.allotted);  // NaN until it is written
  g.used = g.allotted = 0;
  g.arrays.clear();
  for (size_t i = 0; i < d.threadgroup_bytes.size() && i < std::size(g.threadgroup_memory); i++) {
    g.threadgroup_memory[i] = allot(g, nullptr, d.threadgroup_bytes[i], d.kernel->site);
    if (!g.threadgroup_memory[i]) {
      g.error = std::string(d.kernel->name) + ": " + place_of(d.kernel->site) + ": " +
                over_32_kb(g, d.threadgroup_bytes[i]);
      return;
    }
  }
  for (int i = 0; i < g.n_threads; i++) {
    Fiber& f = g.fibers[i];
    const auto index = static_cast<metal::uint>(i);
    f.thread = {at,
                {index % size.x, index / size.x % size.y, index / size.x / size.y},
                size,
                {d.grid[0], d.grid[1], d.grid[2]},
                index,
                index % 32,
                index / 32,
                const_cast<void* const*>(g.buffers.data()),
                g.threadgroup_memory};
    f.state = State::kReady;
    f.operation = kNone;
    f.site = &d.kernel->site;
    f.parity = 0;
    // Staggered, or the tops of all stacks fall into the same sets of the cache.
    start_fiber(f,
                g.stacks + kStackBytes * (static_cast<size_t>(i) + 1) - static_cast<size_t>(i * 832 % 16384));
  }
  for (int s = 0; 32 * s < g.n_threads; s++) {
    g.simdgroups[s].n_lanes = std::min(32, g.n_threads - 32 * s);
    g.simdgroups[s].epoch = 0;
  }
  g.running = true;
  if (sigsetjmp(g.escape, 1) == 0) {
    run_threads(g, order);
  } else {
    std::string memory;
    g.error =
        where(*g.current, site_of(g.fault.instruction, memory)) + "touches " + buffer_at(g.fault.address);
  }
  g.running = false;
  if (g.error.empty()) g.error = written_beside(g);
}

std::string wrong_launch(const Dispatch& d) {
  const Kernel& k = *d.kernel;
  const std::string name = std::string(k.name) + ": ";
  const uint64_t n = uint64_t{d.threads[0]} * d.threads[1] * d.threads[2];
  if (n == 0 || n > static_cast<uint64_t>(k.max_threads)) {
    return name + std::to_string(n) + " threads a threadgroup, expected 1 to " +
           std::to_string(k.max_threads);
  }
  for (int i = 0; i < k.n_bindings; i++) {
    const Binding& b = k.bindings[i];
    const auto index = static_cast<size_t>(b.index);
    const std::string slot = std::to_string(b.index);
    if (b.kind == kThreadgroup) {
      if (index >= d.threadgroup_bytes.size()) return name + "threadgroup(" + slot + ") has no length";
      continue;
    }
    if (b.kind == kBuiltin) continue;
    if (index >= d.buffers.size()) return name + "buffer(" + slot + ") is not bound";
    const Bytes& given = d.buffers[index];
    if (b.kind == kBytes && given.size != static_cast<size_t>(b.size)) {
      return name + "buffer(" + slot + ") takes a struct of " + std::to_string(b.size) + " bytes, not " +
             std::to_string(given.size);
    }
    if (b.kind == kBuffer && given.size) return name + "buffer(" + slot + ") takes a buffer, not bytes";
  }
  return "";
}

// The threadgroups of a segment, numbered through all of its dispatches.
struct Grid {
  std::span<const Dispatch> segment;
  std::vector<uint64_t> firsts;  // of each dispatch
  uint64_t n_groups = 0;

  explicit Grid(std::span<const Dispatch> s) : segment(s) {
    for (const Dispatch& d : s) {
      firsts.push_back(n_groups);
      n_groups += uint64_t{d.grid[0]} * d.grid[1] * d.grid[2];
    }
  }
  bool has_groups(size_t dispatch) const {
    const uint32_t* n = segment[dispatch].grid;
    return n[0] && n[1] && n[2];
  }
  size_t dispatch_of(uint64_t number) const {
    return static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), number) - firsts.begin() - 1);
  }
  metal::uint3 place_of(uint64_t number) const {
    const size_t d = dispatch_of(number);
    const uint64_t at = number - firsts[d];
    const uint32_t* n = segment[d].grid;
    return {static_cast<metal::uint>(at % n[0]), static_cast<metal::uint>(at / n[0] % n[1]),
            static_cast<metal::uint>(at / n[0] / n[1])};
  }
};

}  // namespace

Registered::Registered(const Kernel& kernel) { kernels(kernel.checked).emplace(kernel.name, kernel); }

const Kernel* find_kernel(std::string_view name, bool checked) {
  const auto it = kernels(checked).find(name);
  return it == kernels(checked).end() ? nullptr : &it->second;
}
std::vector<const Kernel*> all_kernels() {
  std::vector<const Kernel*> all;
  for (const auto& [name, kernel] : kernels(true)) all.push_back(&kernel);
  return all;
}
const char* name_of(const Kernel& kernel) { return kernel.name; }
int max_threads_of(const Kernel& kernel) { return kernel.max_threads; }
int bytes_slot_of(const Kernel& kernel) {
  for (int i = 0; i < kernel.n_bindings; i++) {
    if (kernel.bindings[i].kind == kBytes) return kernel.bindings[i].index;
  }
  return -1;
}

thread_local Group* the_group = nullptr;
const Thread& current_thread() { return group().current->thread; }
int n_lanes() { return group().simdgroups[group().current->thread.simdgroup].n_lanes; }

std::string where(const Fiber& f, const Site& site) {
  const metal::uint3 at = f.thread.group;
  return std::string(group().dispatch->kernel->name) + ": " + place_of(site) + ": threadgroup (" +
         std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + "), thread " +
         std::to_string(f.thread.index) + ": ";
}

Site site_of(const void* instruction, std::string& memory) {
  const Site fallback = *group().current->site;
  Dl_info info;
  if (!instruction || !dladdr(instruction, &info) || !info.dli_fname) return fallback;
  char command[1200];
  const auto offset = static_cast<const char*>(instruction) - static_cast<const char*>(info.dli_fbase);
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
                static_cast<size_t>(offset) - 1);
  FILE* pipe = popen(command, "r");
  if (!pipe) return fallback;
  // From the innermost function outwards: the first place that is not in the shim's own headers.
  Site found = fallback;
  char line[1024];
  while (found.file == fallback.file && std::fgets(line, sizeof line, pipe)) {
    std::string place = line;
    const size_t colon = place.rfind(':');
    if (place.starts_with("?") || colon == std::string::npos || place.find("/msl_") != std::string::npos)
      continue;
    const int number = std::atoi(place.c_str() + colon + 1);
    place.resize(colon);
    // As the source was named to the preprocessor: below the repository's root.
    if (const size_t at = place.rfind("/metal/"); at != std::string::npos) place.erase(0, at + 1);
    memory = place;
    found = {memory.c_str(), number};
  }
  pclose(pipe);
  return found;
}

void stop(const std::string& what) {
  group().error = what;
  suspend();
  __builtin_trap();
}
void fail(const char* what, const Site& site) { stop(where(*group().current, site) + what); }

void threadgroup_wait(const Site& site) {
  Fiber& f = *group().current;
  f.site_memory = site;
  f.site = &f.site_memory;
  f.operation = kBarrier;
  f.state = State::kAtBarrier;
  suspend();
}

const unsigned char* exchange(Operation operation, const void* value, int size, const Site& site) {
  Group& g = group();
  Fiber& f = *g.current;
  unsigned char (*slots)[16] = g.simdgroups[f.thread.simdgroup].slots[f.parity];
  f.parity ^= 1;
  std::memcpy(slots[f.thread.lane], value, static_cast<size_t>(size));
  f.site_memory = site;
  f.site = &f.site_memory;
  f.operation = operation;
  f.state = State::kAtSimd;
  suspend();
  return slots[0];
}

void* threadgroup_array(const void* declaration, size_t size, size_t, const Site& site) {
  Group& g = group();
  for (const Array& a : g.arrays) {
    if (a.declaration == declaration) return g.memory + a.begin;
  }
  char* at = allot(g, declaration, size, site);
  if (!at) fail(over_32_kb(g, size).c_str(), site);
  return at;
}

Failure run(std::span<const Dispatch> segment, Schedule schedule, uint64_t seed, int n_threads) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  static std::vector<std::unique_ptr<Group>> groups;
  static std::unique_ptr<Workers> workers;
  see_buffers();
  const Grid grid(segment);
  for (size_t i = 0; i < segment.size(); i++) {
    if (std::string wrong = wrong_launch(segment[i]); !wrong.empty()) return {wrong, i};
    if (segment[i].kernel->checked) n_threads = 1;  // marks of accesses are those of one thread
  }
  if (grid.n_groups == 0) return {};
  if (!workers || workers->size() != n_threads) workers = std::make_unique<Workers>(n_threads);
  while (static_cast<int>(groups.size()) < n_threads) groups.push_back(std::make_unique<Group>());

  std::vector<uint64_t> numbers;
  if (schedule == Schedule::kRandom) {
    numbers.resize(grid.n_groups);
    std::iota(numbers.begin(), numbers.end(), uint64_t{0});
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(seed));
  }
  std::atomic<uint64_t> next{0};
  std::mutex failing;
  Failure failure = {};
  uint64_t failed = UINT64_MAX;  // the first in the order that did
  const std::function<void(int)> work = [&](int worker) {
    Group& g = *groups[static_cast<size_t>(worker)];
    the_group = &g;
    take_memory(g);
    take_signals();
    g.error.clear();
    g.first_run = g.run + 1;
    for (uint64_t i; g.error.empty() && (i = next++) < grid.n_groups;) {
      const uint64_t number = schedule == Schedule::kRandom    ? numbers[i]
                              : schedule == Schedule::kReverse ? grid.n_groups - 1 - i
                                                               : i;
      const size_t d = grid.dispatch_of(number);
      g.dispatch = &segment[d];
      g.buffers.clear();
      for (const Bytes& b : segment[d].buffers) g.buffers.push_back(b.at);
      Order order = {schedule, seed ^ (number * 0xd1342543de82ef95u)};
      run_group(g, grid.place_of(number), order);
      if (g.error.empty()) continue;
      next = grid.n_groups;  // nothing begins any more
      const std::lock_guard one(failing);
      if (i < failed) failed = i, failure = {g.error, d};
    }
    the_group = nullptr;
  };
  workers->run(work);
  for (size_t i = 0; i < segment.size() && failure.what.empty(); i++) {
    if (grid.has_groups(i)) failure = {written_guard(segment[i]), i};
  }
  return failure;
}

}  // namespace msl
