// The cpu flavour: every thread of a threadgroup is a fiber of the runtime (metal/host/runtime.h); barriers
// and operations of a simdgroup switch fibers.
#pragma once

// Kernels are compiled once with reports of their accesses and once, much faster, without: as other
// functions, since a linker keeps one of equal names.
#ifdef MSL_UNCHECKED
#define metal metal_unchecked
#define MSL_CHECKED false
#else
#define MSL_CHECKED true
#endif

#define MSL_FN inline
#include "msl_types.h"

namespace msl {

// Where a kernel asks the runtime for something: what its errors name.
struct Site {
  const char* file;
  int line;
};
#define MSL_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// One thread of the grid, as its kernel sees it.
struct Thread {
  metal::uint3 group, place, group_size, groups;
  metal::uint index, lane, simdgroup;
  void* const* buffers;
  char* const* threadgroup_memory;

  void* buffer(int i) const { return buffers[i]; }
  const void* bytes(int i) const { return buffers[i]; }
  void* threadgroup(int i) const { return threadgroup_memory[i]; }
};
const Thread& current_thread();

enum Operation { kNone, kBarrier, kSimdBarrier, kSum, kMax, kMin, kPrefixSum, kShuffle, kVote, kMultiply };
// Waits for all threads of the threadgroup.
void threadgroup_wait(const Site& site);
// Every lane of the simdgroup leaves `size` bytes, at most 16, and finds those of lane i at 16 * i.
const unsigned char* exchange(Operation operation, const void* value, int size, const Site& site);
int n_lanes();  // of this simdgroup
// Threadgroup memory of a declaration.
void* threadgroup_array(const void* declaration, std::size_t size, std::size_t align, const Site& site);
[[noreturn]] void fail(const char* what, const Site& site);

struct Kernel {
  const char* name;
  void (*run)(const Thread&);
  const Binding* bindings;
  int n_bindings;
  int max_threads;
  Site site;
  bool checked;  // its accesses are reported
};
struct Registered {
  explicit Registered(const Kernel& kernel);
};

MSL_BUILTIN(threadgroup_position_in_grid, c.group)
MSL_BUILTIN(thread_position_in_threadgroup, c.place)
MSL_BUILTIN(thread_position_in_grid, (c.group * c.group_size + c.place))
MSL_BUILTIN(threads_per_threadgroup, c.group_size)
MSL_BUILTIN(dispatch_threads_per_threadgroup, c.group_size)
MSL_BUILTIN(threadgroups_per_grid, c.groups)
MSL_BUILTIN(threads_per_grid, (c.groups * c.group_size))
MSL_BUILTIN(thread_index_in_threadgroup, metal::uint3(c.index))
MSL_BUILTIN(thread_index_in_simdgroup, metal::uint3(c.lane))
MSL_BUILTIN(simdgroup_index_in_threadgroup, metal::uint3(c.simdgroup))
MSL_BUILTIN(simdgroups_per_threadgroup,
            metal::uint3((c.group_size.x * c.group_size.y * c.group_size.z + 31) / 32))

}  // namespace msl

namespace metal {

inline void threadgroup_barrier(mem_flags, MSL_SITE) { msl::threadgroup_wait(msl::Site{file, line}); }
inline void simdgroup_barrier(mem_flags, MSL_SITE) {
  const char nothing = 0;
  msl::exchange(msl::kSimdBarrier, &nothing, 1, msl::Site{file, line});
}

template <class T>
T msl_of_lane(const unsigned char* all, int lane) {
  T v;
  memcpy(&v, all + 16 * lane, sizeof v);
  return v;
}
// Reductions go over lanes 16 apart, then 8, 4, 2, 1.
#define MSL_REDUCE(name, operation, expr)                                                          \
  template <class T>                                                                               \
  T name(T v, MSL_SITE) {                                                                          \
    static_assert(!std::is_same<T, bfloat>::value, "convert a bfloat to float first");             \
    static_assert(sizeof(T) <= 4, "Metal reduces at most 32 bits");                                \
    const unsigned char* all = msl::exchange(msl::operation, &v, sizeof v, msl::Site{file, line}); \
    T part[32];                                                                                    \
    const int n = msl::n_lanes();                                                                  \
    for (int i = 0; i < n; i++) part[i] = msl_of_lane<T>(all, i);                                  \
    for (int w = 16; w; w /= 2) {                                                                  \
      for (int i = 0; i < w && i + w < n; i++) {                                                   \
        const T a = part[i], b = part[i + w];                                                      \
        part[i] = expr;                                                                            \
      }                                                                                            \
    }                                                                                              \
    return part[0];                                                                                \
  }
MSL_REDUCE(simd_sum, kSum, T(a + b))
MSL_REDUCE(simd_max, kMax, max(a, b))
MSL_REDUCE(simd_min, kMin, min(a, b))
template <class T>
T simd_prefix_exclusive_sum(T v, MSL_SITE) {
  static_assert(std::is_integral<T>::value, "the order of Metal's sum is open: whole numbers only");
  const unsigned char* all = msl::exchange(msl::kPrefixSum, &v, sizeof v, msl::Site{file, line});
  T sum = 0;
  for (uint i = 0; i < msl::current_thread().lane; i++) sum = T(sum + msl_of_lane<T>(all, int(i)));
  return sum;
}
template <class T>
T simd_prefix_inclusive_sum(T v, MSL_SITE) {
  return T(simd_prefix_exclusive_sum(v, file, line) + v);
}
template <class T>
T msl_shuffle(T v, int from, const msl::Site& site) {
  static_assert(sizeof(T) <= 16, "a shuffle moves at most 16 bytes");
  const unsigned char* all = msl::exchange(msl::kShuffle, &v, sizeof v, site);
  if (from < 0 || from >= 32) return v;
  if (from >= msl::n_lanes()) msl::fail("shuffles from a lane that does not exist", site);
  return msl_of_lane<T>(all, from);
}
template <class T>
T simd_shuffle(T v, ushort lane, MSL_SITE) {
  return msl_shuffle(v, lane, msl::Site{file, line});
}
template <class T>
T simd_broadcast(T v, ushort lane, MSL_SITE) {
  return msl_shuffle(v, lane, msl::Site{file, line});
}
template <class T>
T simd_broadcast_first(T v, MSL_SITE) {
  return msl_shuffle(v, 0, msl::Site{file, line});
}
template <class T>
T simd_shuffle_xor(T v, ushort mask, MSL_SITE) {
  return msl_shuffle(v, int(msl::current_thread().lane ^ mask), msl::Site{file, line});
}
template <class T>
T simd_shuffle_down(T v, ushort by, MSL_SITE) {
  return msl_shuffle(v, int(msl::current_thread().lane + by), msl::Site{file, line});
}
template <class T>
T simd_shuffle_up(T v, ushort by, MSL_SITE) {
  return msl_shuffle(v, int(msl::current_thread().lane) - int(by), msl::Site{file, line});
}
inline uint msl_vote(bool v, const msl::Site& site) {
  const unsigned char one = v;
  const unsigned char* all = msl::exchange(msl::kVote, &one, 1, site);
  uint bits = 0;
  for (int i = 0; i < msl::n_lanes(); i++) bits |= uint(all[16 * i]) << i;
  return bits;
}
inline bool simd_any(bool v, MSL_SITE) { return msl_vote(v, msl::Site{file, line}) != 0; }
inline bool simd_all(bool v, MSL_SITE) {
  const uint n = uint(msl::n_lanes());
  return msl_vote(v, msl::Site{file, line}) == (n == 32 ? ~0u : (1u << n) - 1);
}

template <class T, class S>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const S* p, ulong stride = 8) {
  const msl::Thread& t = msl::current_thread();
  const uint row = msl_row_of(t.lane), column = msl_column_of(t.lane);
  for (uint i = 0; i < 2; i++) m.e[i] = T(p[row * stride + column + i]);
}
template <class T, class S>
void simdgroup_store(simdgroup_matrix<T, 8, 8> m, S* p, ulong stride = 8) {
  const msl::Thread& t = msl::current_thread();
  const uint row = msl_row_of(t.lane), column = msl_column_of(t.lane);
  for (uint i = 0; i < 2; i++) p[row * stride + column + i] = m.e[i];
}
// d = a b + c, the inputs of a sum ascending. Apple's order is its own: docs/metal.md.
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                   simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b,
                                   simdgroup_matrix<C, 8, 8> c,
                                   MSL_SITE) {
  struct {
    vec<A, 2> a;
    vec<B, 2> b;
  } both = {a.e, b.e};
  const unsigned char* all = msl::exchange(msl::kMultiply, &both, sizeof both, msl::Site{file, line});
  const uint lane = msl::current_thread().lane, row = msl_row_of(lane), column = msl_column_of(lane);
  float sums[2] = {float(c.e[0]), float(c.e[1])};
  for (uint k = 0; k < 8; k++) {
    A left;
    vec<B, 2> right;
    memcpy(&left, all + 16 * msl_lane_of(row, k) + sizeof(A) * (k & 1), sizeof left);
    memcpy(&right, all + 16 * msl_lane_of(k, column) + sizeof(vec<A, 2>), sizeof right);
    sums[0] = ::fmaf(float(left), float(right.x), sums[0]);
    sums[1] = ::fmaf(float(left), float(right.y), sums[1]);
  }
  d.e = vec<D, 2>(D(sums[0]), D(sums[1]));
}

#define MSL_ATOMIC(name, builtin)                  \
  template <class T, class U>                      \
  T name(atomic<T>* a, U v, memory_order) {        \
    return builtin(&a->v, T(v), __ATOMIC_RELAXED); \
  }
MSL_ATOMIC(atomic_fetch_add_explicit, __atomic_fetch_add)
MSL_ATOMIC(atomic_fetch_or_explicit, __atomic_fetch_or)
template <class T>
T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return __atomic_load_n(&a->v, __ATOMIC_RELAXED);
}
template <class T, class U>
void atomic_store_explicit(atomic<T>* a, U v, memory_order) {
  __atomic_store_n(&a->v, T(v), __ATOMIC_RELAXED);
}

}  // namespace metal

#define MSL_UNPACK(...) __VA_ARGS__
#define MSL_CALL(...) (__VA_ARGS__)
#define MSL_ENTRY(id, name, function, call, meta, limit, file, line) \
  static void run_##id(const msl::Thread& c) {                       \
    (void)c;                                                         \
    MSL_UNPACK function MSL_CALL call;                               \
  }                                                                  \
  static const msl::Binding bindings_##id[] = {MSL_UNPACK meta};     \
  static const msl::Registered registered_##id(                      \
      msl::Kernel{name,                                              \
                  run_##id,                                          \
                  bindings_##id,                                     \
                  int(sizeof bindings_##id / sizeof *bindings_##id), \
                  int limit,                                         \
                  {file, line},                                      \
                  MSL_CHECKED});
#define MSL_THREADGROUP(type, name, dims)                                                                \
  typedef MSL_UNPACK type msl_type_##name dims;                                                          \
  static const char msl_declaration_##name = 0;                                                          \
  msl_type_##name& name = *static_cast<msl_type_##name*>(                                                \
      msl::threadgroup_array(&msl_declaration_##name, sizeof(msl_type_##name), alignof(msl_type_##name), \
                             msl::Site{__FILE__, __LINE__}))
#define MSL_CONSTANT static const
#define MSL_kernel
#define METAL_FUNC inline __attribute__((__always_inline__))
#define MSL_SHARED_FUNC __attribute__((__noinline__))
#define MSL_device
#define MSL_constant const
#define MSL_threadgroup
#define MSL_thread
