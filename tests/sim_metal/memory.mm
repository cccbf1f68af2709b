// Memory at two addresses, the host's and the GPU's, the latter between pages that nothing may touch.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "metal/host/runtime.h"
#include "simulated.h"

namespace sim {
namespace {

constexpr size_t kGuardBytes = 1 << 20;
constexpr size_t kKept = 256;  // freed ranges that stay reserved, so that who holds an address meets a fault
std::mutex mutex;
std::deque<std::pair<void*, size_t>> kept;

constexpr char kByHost[] = "by the host's pointer where the GPU has an address of its own";
constexpr char kNotResident[] = "which is not resident";

size_t in_pages(size_t size_bytes) {
  const auto page = static_cast<size_t>(getpagesize());
  return std::max((size_bytes + page - 1) / page, size_t{1}) * page;
}

// The pages once more, between guards.
char* map_again(void* pages, size_t size_bytes) {
  void* room = mmap(nullptr, size_bytes + 2 * kGuardBytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  char* at = static_cast<char*>(room) + kGuardBytes;
  // A shared mapping that is moved away from size 0 stays where it is, too.
  if (mremap(pages, 0, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
    munmap(room, size_bytes + 2 * kGuardBytes);
    return nullptr;
  }
  return at;
}

}  // namespace

Memory* allocate(size_t size_bytes) {
  const size_t mapped = in_pages(size_bytes);
  if (mapped < size_bytes) return nullptr;
  void* host =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (host == MAP_FAILED) return nullptr;
  char* gpu = map_again(host, mapped);
  if (!gpu) {
    munmap(host, mapped);
    return nullptr;
  }
  msl::adopt(gpu, size_bytes, true);
  msl::adopt(host, mapped);
  msl::hide(host, kByHost);
  return new Memory{static_cast<char*>(host), gpu, size_bytes, mapped, false, false};
}

Memory* alias(void* pages, size_t size_bytes) {
  char* gpu = map_again(pages, size_bytes);
  if (!gpu) misuse("memory without a copy is none that is mapped and shared");
  msl::adopt(gpu, size_bytes);
  msl::adopt(pages, size_bytes);
  msl::hide(pages, kByHost);
  return new Memory{static_cast<char*>(pages), gpu, size_bytes, size_bytes, true, false};
}

void release(Memory* memory) {
  msl::disown(memory->gpu);
  msl::disown(memory->host);
  char* all = memory->gpu - kGuardBytes;
  const size_t size = memory->mapped_bytes + 2 * kGuardBytes;
  mmap(all, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (!memory->no_copy) munmap(memory->host, memory->mapped_bytes);
  delete memory;
  const std::lock_guard lock(mutex);
  kept.emplace_back(all, size);
  if (kept.size() > kKept) {
    munmap(kept.front().first, kept.front().second);
    kept.pop_front();
  }
}

void hide(Memory* memory, bool hidden) {
  if (memory->is_hidden == hidden) return;
  memory->is_hidden = hidden;
  const int readable = memory->no_copy ? PROT_READ : PROT_READ | PROT_WRITE;
  mprotect(memory->gpu, memory->mapped_bytes, hidden ? PROT_NONE : readable);
  msl::hide(memory->gpu, hidden ? kNotResident : nullptr);
}

}  // namespace sim
