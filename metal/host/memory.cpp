// Buffers with guards around them, and what kernels do to buffers and to threadgroup memory, as the compiler
// reports it.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "metal/host/internal.h"

namespace msl {
namespace {

constexpr size_t kPage = 4096, kGuardBytes = 1 << 20;
constexpr unsigned char kSlack = 0xa5;  // of the first or last page, beside the memory

struct Block {
  const char *begin, *end;          // the memory
  const char *mapped, *mapped_end;  // the pages that can be touched
  bool read_only;
  std::atomic<const char*> hidden{nullptr};  // why nothing may touch it
  size_t marks_bytes = 0;
  Mark* marks = nullptr;     // one for two bytes; pages of it come when they are written
  uint32_t written_run = 0;  // the last run that wrote here

  ~Block() {
    if (marks) munmap(marks, marks_bytes);
  }
};

std::mutex mutex;
std::map<const char*, std::shared_ptr<Block>> blocks;  // by `begin`
uint64_t version = 1;
// Released ranges stay reserved for a while, so that whoever still holds an address meets a fault.
std::deque<std::pair<void*, size_t>> quarantine;
constexpr size_t kQuarantine = 256;

// As a segment sees them, by `mapped`.
std::vector<std::shared_ptr<Block>> seen;
uint64_t seen_version = 0;
Block* last = nullptr;

Block* block_of(const char* at) {
  if (last && at >= last->mapped && at < last->mapped_end) return last;
  const auto it =
      std::upper_bound(seen.begin(), seen.end(), at,
                       [](const char* a, const std::shared_ptr<Block>& b) { return a < b->mapped; });
  if (it == seen.begin()) return nullptr;
  Block* b = std::prev(it)->get();
  if (at >= b->mapped_end) return nullptr;
  return last = b;
}

bool slack_changed(const Block& b) {
  if (b.read_only) return false;
  const auto changed = [](const char* from, const char* to) {
    return std::any_of(from, to, [](char c) { return static_cast<unsigned char>(c) != kSlack; });
  };
  return changed(b.mapped, b.begin) || changed(b.end, b.mapped_end);
}

std::string bytes_text(size_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

// What two bytes of threadgroup memory have seen: one reader is not enough, for the next may be another.
struct Shared {
  Mark written, read, read_by_other;
};
Shared shared[kArenaBytes / 2];

Mark mark_now(const Group& g) {
  const Thread& t = g.current->thread;
  return {g.run, g.barrier, g.simdgroups[t.simdgroup].epoch, static_cast<uint16_t>(t.index),
          static_cast<uint16_t>(g.current->site->line)};
}

// Whether another thread's touch of a place is ordered before that of the thread that runs.
bool ordered(const Mark& m, const Mark& now) {
  if (m.thread == now.thread || m.barrier != now.barrier) return true;
  return m.thread / 32 == now.thread / 32 && m.simd != now.simd;
}

[[noreturn]] void stop_at(const void* instruction, const std::string& what) {
  std::string memory;
  const Site site = site_of(instruction, memory);
  stop(where(*group().current, site) + what);
}

[[noreturn]] void race(
    const void* instruction, bool writes, const Mark& other, bool other_writes, const std::string& place) {
  stop_at(instruction, std::string(writes ? "writes " : "reads ") + place + " that thread " +
                           std::to_string(other.thread) + (other_writes ? " has written" : " has read") +
                           ", without a barrier between");
}

void touch_shared(Group& g, const char* at, size_t size, bool writes, const void* instruction) {
  const auto offset = static_cast<size_t>(at - g.memory);
  const auto array = std::find_if(g.arrays.begin(), g.arrays.end(), [&](const Array& a) {
    return offset >= a.begin && offset < a.end + kArrayGuard;
  });
  if (array == g.arrays.end() || offset + size > array->end) {
    stop_at(instruction, std::string(writes ? "writes " : "reads ") + bytes_text(size) +
                             " of threadgroup memory outside of every array" +
                             (array == g.arrays.end() ? ""
                                                      : ": behind that of " + std::string(array->site.file) +
                                                            ":" + std::to_string(array->site.line)));
  }
  const Mark now = mark_now(g);
  const auto place = [&] {
    return "threadgroup memory of " + std::string(array->site.file) + ":" + std::to_string(array->site.line);
  };
  for (size_t i = offset / 2; i <= (offset + size - 1) / 2; i++) {
    Shared& s = shared[i];
    if (s.written.run == g.run && !ordered(s.written, now))
      race(instruction, writes, s.written, true, place());
    if (writes) {
      for (const Mark* m : {&s.read, &s.read_by_other}) {
        if (m->run == g.run && !ordered(*m, now)) race(instruction, true, *m, false, place());
      }
      s.written = now;
      s.read.run = s.read_by_other.run = 0;
    } else {
      if (s.read.run == g.run && s.read.thread != now.thread) s.read_by_other = s.read;
      s.read = now;
    }
  }
}

void touch_buffer(
    Group& g, Block& b, const char* at, size_t size, bool writes, bool atomic, const void* instruction) {
  if (at < b.begin || at + size > b.end) {
    stop_at(instruction,
            std::string(writes ? "writes " : "reads ") + bytes_text(size) + " of " + buffer_at(at));
  }
  if (b.hidden) stop_at(instruction, "touches " + buffer_at(at));
  if (writes && b.read_only) stop_at(instruction, "writes " + buffer_at(at) + ", which can only be read");
  if (b.read_only || atomic || (!writes && b.written_run < g.first_run)) return;
  const Mark now = mark_now(g);
  const auto offset = static_cast<size_t>(at - b.begin);
  if (!b.marks) {
    b.marks_bytes = (static_cast<size_t>(b.end - b.begin) / 2 + 1) * sizeof(Mark);
    void* room = mmap(nullptr, b.marks_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return;
    b.marks = static_cast<Mark*>(room);
  }
  for (size_t i = offset / 2; i <= (offset + size - 1) / 2; i++) {
    Mark& m = b.marks[i];
    if (m.run >= g.first_run) {
      const bool same_group = m.run == g.run;
      if (!same_group) {
        stop_at(instruction,
                std::string(writes ? "writes " : "reads ") + buffer_at(at) +
                    ", which another threadgroup has written since the last barrier between dispatches");
      }
      if (!ordered(m, now)) race(instruction, writes, m, true, buffer_at(at));
    }
    if (writes) m = now;
  }
  if (writes) b.written_run = g.run;
}

// align: what the kernel's types promise of the address. Where the compiler has joined smaller accesses, that
// is 1.
void touch(
    const void* address, size_t size, size_t align, bool writes, bool atomic, const void* instruction) {
  if (!the_group || !the_group->running) return;  // no kernel's: of a constructor, say
  Group& g = group();
  const char* at = static_cast<const char*>(address);
  if (at >= g.stacks && at < g.stacks + kStackBytes * kMaxThreads) return;
  if (at >= g.memory && at < g.memory + kArenaBytes) {
    if (!atomic) touch_shared(g, at, size, writes, instruction);
    return;
  }
  Block* b = block_of(at);
  if (!b) return;  // a guard page, which the processor sees, or a constant of the kernel
  if (reinterpret_cast<uintptr_t>(at) % align != 0) {
    stop_at(instruction, "touches " + bytes_text(size) +
                             " at an address that is not a multiple of that, in " + buffer_at(at));
  }
  touch_buffer(g, *b, at, size, writes, atomic, instruction);
}

}  // namespace

void* allocate(size_t size, int fill, bool at_start) {
  const size_t inner = std::max<size_t>((size + kPage - 1) / kPage * kPage, kPage);
  const size_t all = inner + 2 * kGuardBytes;
  if (all < size) return nullptr;
  void* room = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  char* pages = static_cast<char*>(room) + kGuardBytes;
  if (mprotect(pages, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(room, all);
    return nullptr;
  }
  // A multiple of 16 in front of the end, so that up to 15 bytes of slack are left there.
  char* p = at_start ? pages : pages + (inner - size) / 16 * 16;
  std::memset(pages, kSlack, static_cast<size_t>(p - pages));
  if (fill) std::memset(p, fill, size);
  std::memset(p + size, kSlack, static_cast<size_t>(pages + inner - p) - size);
  auto block = std::make_shared<Block>();
  block->begin = p;
  block->end = p + size;
  block->mapped = pages;
  block->mapped_end = pages + inner;
  block->read_only = false;
  const std::lock_guard lock(mutex);
  blocks[p] = std::move(block);
  version++;
  return p;
}

std::string release(void* memory) {
  std::shared_ptr<Block> block;
  {
    const std::lock_guard lock(mutex);
    const auto it = blocks.find(static_cast<char*>(memory));
    if (it == blocks.end()) return "releases memory that is not allocated";
    block = it->second;
    blocks.erase(it);
    version++;
  }
  const bool changed = slack_changed(*block);
  char* all = const_cast<char*>(block->mapped) - kGuardBytes;
  const size_t size = static_cast<size_t>(block->mapped_end - block->mapped) + 2 * kGuardBytes;
  mmap(all, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  const std::lock_guard lock(mutex);
  quarantine.emplace_back(all, size);
  if (quarantine.size() > kQuarantine) {
    munmap(quarantine.front().first, quarantine.front().second);
    quarantine.pop_front();
  }
  if (!changed) return "";
  return "something wrote beside a buffer of " + bytes_text(static_cast<size_t>(block->end - block->begin));
}

void adopt(const void* memory, size_t size, bool writable) {
  auto block = std::make_shared<Block>();
  block->begin = block->mapped = static_cast<const char*>(memory);
  block->end = block->mapped_end = block->begin + size;
  block->read_only = !writable;
  if (writable) {
    const size_t slack = (kPage - size % kPage) % kPage;
    std::memset(const_cast<char*>(block->end), kSlack, slack);
    block->mapped_end += slack;
  }
  const std::lock_guard lock(mutex);
  blocks[block->begin] = std::move(block);
  version++;
}

void disown(const void* memory) {
  const std::lock_guard lock(mutex);
  blocks.erase(static_cast<const char*>(memory));
  version++;
}

void hide(const void* memory, const char* why) {
  const std::lock_guard lock(mutex);
  if (const auto it = blocks.find(static_cast<const char*>(memory)); it != blocks.end())
    it->second->hidden = why;
}

void see_buffers() {
  const std::lock_guard lock(mutex);
  if (seen_version == version) return;
  seen.clear();
  for (const auto& [begin, block] : blocks) seen.push_back(block);
  last = nullptr;
  seen_version = version;
}

std::string buffer_at(const void* address) {
  const char* at = static_cast<const char*>(address);
  const Block* near = nullptr;
  for (const std::shared_ptr<Block>& b : seen) {
    if (at >= b->mapped - kGuardBytes && at < b->mapped_end + kGuardBytes) near = b.get();
  }
  if (!near) return "memory that belongs to no buffer";
  const auto offset = at - near->begin;
  const std::string size = "a buffer of " + bytes_text(static_cast<size_t>(near->end - near->begin));
  const char* hidden = near->hidden;
  return "byte " + std::to_string(offset) + " of " + size + (hidden ? std::string(", ") + hidden : "");
}

std::string written_guard(const Dispatch& d) {
  for (const Bytes& bound : d.buffers) {
    const Block* b = bound.at && !bound.size ? block_of(static_cast<const char*>(bound.at)) : nullptr;
    if (b && slack_changed(*b)) {
      return std::string(d.kernel->name) + ": " + d.kernel->site.file + ":" +
             std::to_string(d.kernel->site.line) + ": it wrote beside a buffer of " +
             bytes_text(static_cast<size_t>(b->end - b->begin));
    }
  }
  return "";
}

}  // namespace msl

// What -fsanitize=thread has a compiler call. Hidden, so that a program under the real sanitizer keeps its
// own.
#define MSL_HOOK extern "C" __attribute__((visibility("hidden")))
#define MSL_ACCESS(n)                                                                                       \
  MSL_HOOK void __tsan_read##n(void* p) { msl::touch(p, n, n, false, false, __builtin_return_address(0)); } \
  MSL_HOOK void __tsan_write##n(void* p) { msl::touch(p, n, n, true, false, __builtin_return_address(0)); } \
  MSL_HOOK void __tsan_unaligned_read##n(void* p) {                                                         \
    msl::touch(p, n, 1, false, false, __builtin_return_address(0));                                         \
  }                                                                                                         \
  MSL_HOOK void __tsan_unaligned_write##n(void* p) {                                                        \
    msl::touch(p, n, 1, true, false, __builtin_return_address(0));                                          \
  }
MSL_ACCESS(1)
MSL_ACCESS(2)
MSL_ACCESS(4)
MSL_ACCESS(8)
MSL_ACCESS(16)
MSL_HOOK void __tsan_init() {}
MSL_HOOK void __tsan_func_entry(void*) {}
MSL_HOOK void __tsan_func_exit() {}
MSL_HOOK void __tsan_read_range(void* p, size_t n) {
  if (n) msl::touch(p, n, 1, false, false, __builtin_return_address(0));
}
MSL_HOOK void __tsan_write_range(void* p, size_t n) {
  if (n) msl::touch(p, n, 1, true, false, __builtin_return_address(0));
}
MSL_HOOK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  msl::touch(from, n, 1, false, false, __builtin_return_address(0));
  msl::touch(to, n, 1, true, false, __builtin_return_address(0));
  return std::memcpy(to, from, n);
}
MSL_HOOK void* __tsan_memset(void* to, int value, size_t n) {
  msl::touch(to, n, 1, true, false, __builtin_return_address(0));
  return std::memset(to, value, n);
}
MSL_HOOK int __tsan_atomic32_fetch_add(volatile int* p, int v, int) {
  msl::touch(const_cast<int*>(p), 4, 4, true, true, __builtin_return_address(0));
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
MSL_HOOK int __tsan_atomic32_fetch_or(volatile int* p, int v, int) {
  msl::touch(const_cast<int*>(p), 4, 4, true, true, __builtin_return_address(0));
  return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
MSL_HOOK int __tsan_atomic32_load(const volatile int* p, int) {
  msl::touch(const_cast<int*>(p), 4, 4, false, true, __builtin_return_address(0));
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
MSL_HOOK void __tsan_atomic32_store(volatile int* p, int v, int) {
  msl::touch(const_cast<int*>(p), 4, 4, true, true, __builtin_return_address(0));
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
