// The cuda flavour: a threadgroup is a block, a simdgroup a warp.
#pragma once

// Names of its own, so that one program may hold the cpu flavour too.
#define msl msl_cuda
#define metal metal_cuda

#define MSL_FN __host__ __device__ inline
#include "msl_types.h"

namespace msl {

enum { kMostBuffers = 20, kMostBytes = 128 };
// A kernel's only parameter: buffers, and in their places what is bound by value.
struct Arguments {
  void* buffers[kMostBuffers];
  alignas(16) unsigned char values[2][kMostBytes];
  int value_slots[2];

  __device__ void* buffer(int i) const { return buffers[i]; }
  __device__ const void* bytes(int i) const { return values[i == value_slots[0] ? 0 : 1]; }
  __device__ void* threadgroup(int) const {
    extern __shared__ __align__(16) unsigned char msl_shared[];
    return msl_shared;
  }
};
struct Kernel {
  const char* name;
  const void* function;
  const Binding* bindings;
  int n_bindings;
  int max_threads;
};
struct Registered {
  explicit Registered(const Kernel& kernel);
};

__device__ inline unsigned thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

#undef MSL_BUILTIN
#define MSL_BUILTIN(name, ...)                                                    \
  struct name {                                                                   \
    template <class P, class C>                                                   \
    __device__ static P get(const C&) {                                           \
      return FromVector<std::remove_const_t<P>>::make(metal::uint3(__VA_ARGS__)); \
    }                                                                             \
    template <class P>                                                            \
    static Binding meta() {                                                       \
      return {kBuiltin, 0, 0};                                                    \
    }                                                                             \
  };
MSL_BUILTIN(threadgroup_position_in_grid, blockIdx.x, blockIdx.y, blockIdx.z)
MSL_BUILTIN(thread_position_in_threadgroup, threadIdx.x, threadIdx.y, threadIdx.z)
MSL_BUILTIN(thread_position_in_grid,
            blockIdx.x* blockDim.x + threadIdx.x,
            blockIdx.y* blockDim.y + threadIdx.y,
            blockIdx.z* blockDim.z + threadIdx.z)
MSL_BUILTIN(threads_per_threadgroup, blockDim.x, blockDim.y, blockDim.z)
MSL_BUILTIN(dispatch_threads_per_threadgroup, blockDim.x, blockDim.y, blockDim.z)
MSL_BUILTIN(threadgroups_per_grid, gridDim.x, gridDim.y, gridDim.z)
MSL_BUILTIN(threads_per_grid, gridDim.x* blockDim.x, gridDim.y* blockDim.y, gridDim.z* blockDim.z)
MSL_BUILTIN(thread_index_in_threadgroup, thread_index())
MSL_BUILTIN(thread_index_in_simdgroup, thread_index() % 32)
MSL_BUILTIN(simdgroup_index_in_threadgroup, thread_index() / 32)
MSL_BUILTIN(simdgroups_per_threadgroup, (blockDim.x * blockDim.y * blockDim.z + 31) / 32)

}  // namespace msl

#define MSL_DEVICE __device__ __forceinline__

namespace metal {

MSL_DEVICE void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_DEVICE void simdgroup_barrier(mem_flags) { __syncwarp(); }
MSL_DEVICE uint msl_lane() { return msl::thread_index() % 32; }

template <class T>
MSL_DEVICE T msl_shuffle(T v, uint from) {  // from: 0 .. 31
  constexpr int n = (sizeof(T) + 3) / 4;
  unsigned words[n] = {};
  memcpy(words, &v, sizeof v);
  for (int i = 0; i < n; i++) words[i] = __shfl_sync(0xffffffffu, words[i], int(from));
  memcpy(&v, words, sizeof v);
  return v;
}
#define MSL_REDUCE(name, expr)                                                         \
  template <class T>                                                                   \
  MSL_DEVICE T name(T a) {                                                             \
    static_assert(!std::is_same<T, bfloat>::value, "convert a bfloat to float first"); \
    for (uint w = 16; w; w /= 2) {                                                     \
      const T b = msl_shuffle(a, msl_lane() ^ w);                                      \
      a = expr;                                                                        \
    }                                                                                  \
    return a;                                                                          \
  }
MSL_REDUCE(simd_sum, T(a + b))
MSL_REDUCE(simd_max, max(a, b))
MSL_REDUCE(simd_min, min(a, b))
template <class T>
MSL_DEVICE T simd_prefix_inclusive_sum(T v) {
  static_assert(std::is_integral<T>::value, "the order of Metal's sum is open: whole numbers only");
  for (uint w = 1; w < 32; w *= 2) {
    const T other = msl_shuffle(v, (msl_lane() - w) & 31);
    if (msl_lane() >= w) v = T(v + other);
  }
  return v;
}
template <class T>
MSL_DEVICE T simd_prefix_exclusive_sum(T v) {
  return T(simd_prefix_inclusive_sum(v) - v);
}
template <class T>
MSL_DEVICE T msl_shuffle_inside(T v, int from) {
  const T other = msl_shuffle(v, uint(from) & 31);
  return from < 0 || from > 31 ? v : other;
}
template <class T>
MSL_DEVICE T simd_shuffle(T v, ushort lane) {
  return msl_shuffle(v, lane & 31u);
}
template <class T>
MSL_DEVICE T simd_broadcast(T v, ushort lane) {
  return msl_shuffle(v, lane & 31u);
}
template <class T>
MSL_DEVICE T simd_broadcast_first(T v) {
  return msl_shuffle(v, 0);
}
template <class T>
MSL_DEVICE T simd_shuffle_xor(T v, ushort mask) {
  return msl_shuffle(v, msl_lane() ^ mask);
}
template <class T>
MSL_DEVICE T simd_shuffle_down(T v, ushort by) {
  return msl_shuffle_inside(v, int(msl_lane()) + by);
}
template <class T>
MSL_DEVICE T simd_shuffle_up(T v, ushort by) {
  return msl_shuffle_inside(v, int(msl_lane()) - by);
}
MSL_DEVICE bool simd_any(bool v) { return __any_sync(0xffffffffu, v); }
MSL_DEVICE bool simd_all(bool v) { return __all_sync(0xffffffffu, v); }

template <class T, class S>
MSL_DEVICE void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const S* p, ulong stride = 8) {
  const uint row = msl_row_of(msl_lane()), column = msl_column_of(msl_lane());
  __syncwarp();
  for (uint i = 0; i < 2; i++) m.e[i] = T(p[row * stride + column + i]);
}
template <class T, class S>
MSL_DEVICE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, S* p, ulong stride = 8) {
  const uint row = msl_row_of(msl_lane()), column = msl_column_of(msl_lane());
  for (uint i = 0; i < 2; i++) p[row * stride + column + i] = m.e[i];
  __syncwarp();
}
template <class D, class A, class B, class C>
MSL_DEVICE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                              simdgroup_matrix<A, 8, 8> a,
                                              simdgroup_matrix<B, 8, 8> b,
                                              simdgroup_matrix<C, 8, 8> c) {
  const uint row = msl_row_of(msl_lane()), column = msl_column_of(msl_lane());
  float sums[2] = {float(c.e[0]), float(c.e[1])};
  for (uint k = 0; k < 8; k++) {
    const vec<A, 2> left = msl_shuffle(a.e, msl_lane_of(row, k));
    const vec<B, 2> right = msl_shuffle(b.e, msl_lane_of(k, column));
    sums[0] = fma(float(left[k & 1]), float(right.x), sums[0]);
    sums[1] = fma(float(left[k & 1]), float(right.y), sums[1]);
  }
  d.e = vec<D, 2>(D(sums[0]), D(sums[1]));
}

template <class T, class U>
MSL_DEVICE T atomic_fetch_add_explicit(atomic<T>* a, U v, memory_order) {
  return atomicAdd(&a->v, T(v));
}
template <class T, class U>
MSL_DEVICE T atomic_fetch_or_explicit(atomic<T>* a, U v, memory_order) {
  return atomicOr(&a->v, T(v));
}
template <class T>
MSL_DEVICE T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return *const_cast<const volatile T*>(&a->v);
}
template <class T, class U>
MSL_DEVICE void atomic_store_explicit(atomic<T>* a, U v, memory_order) {
  *const_cast<volatile T*>(&a->v) = T(v);
}

}  // namespace metal

#define MSL_UNPACK(...) __VA_ARGS__
#define MSL_CALL(...) (__VA_ARGS__)
#define MSL_ENTRY(id, name, function, call, meta, limit, file, line)                                         \
  static __global__ void __launch_bounds__(int limit) entry_##id(const __grid_constant__ msl::Arguments c) { \
    (void)c;                                                                                                 \
    MSL_UNPACK function MSL_CALL call;                                                                       \
  }                                                                                                          \
  static const msl::Binding bindings_##id[] = {MSL_UNPACK meta};                                             \
  static const msl::Registered registered_##id(                                                              \
      msl::Kernel{name, reinterpret_cast<const void*>(entry_##id), bindings_##id,                            \
                  int(sizeof bindings_##id / sizeof *bindings_##id), int limit});
#define MSL_THREADGROUP(type, name, dims) __shared__ MSL_UNPACK type name dims
#define MSL_CONSTANT static __constant__ const
#define MSL_kernel __device__ __forceinline__
#define METAL_FUNC __device__ __forceinline__
#define MSL_SHARED_FUNC METAL_FUNC
#define MSL_device
#define MSL_constant const
#define MSL_threadgroup
#define MSL_thread
