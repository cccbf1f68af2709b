// The check flavour: clang -fsyntax-only in Metal's C++14 with real address spaces, so that mixing pointers
// is an error as it is for Apple's compiler. Declarations only.
#pragma once

#include "msl_argument.h"

#define MSL_device __attribute__((address_space(1)))
#define MSL_CONSTANT_SPACE __attribute__((address_space(2)))
#define MSL_constant const MSL_CONSTANT_SPACE
#define MSL_threadgroup __attribute__((address_space(3)))
#define MSL_thread
#define INFINITY __builtin_inff()

namespace metal {

using uint = unsigned int;
using uchar = unsigned char;
using ushort = unsigned short;
using ulong = unsigned long;
using int8_t = signed char;
using uint8_t = uchar;
using int16_t = short;
using uint16_t = ushort;
using int32_t = int;
using uint32_t = uint;
using int64_t = long;
using uint64_t = ulong;
using size_t = unsigned long;
using bfloat = __bf16;
using half = _Float16;  // so that nothing else is called half
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
#define MSL_VECTORS(T)              \
  using T##2 = vec<T, 2>;           \
  using T##3 = vec<T, 3>;           \
  using T##4 = vec<T, 4>;           \
  T##2 msl_make_##T##2(T);          \
  T##2 msl_make_##T##2(T, T);       \
  T##3 msl_make_##T##3(T);          \
  T##3 msl_make_##T##3(T, T, T);    \
  T##4 msl_make_##T##4(T);          \
  T##4 msl_make_##T##4(T, T, T, T); \
  template <class U>                \
  T##2 msl_make_##T##2(vec<U, 2>);  \
  template <class U>                \
  T##3 msl_make_##T##3(vec<U, 3>);  \
  template <class U>                \
  T##4 msl_make_##T##4(vec<U, 4>);
MSL_VECTORS(float)
MSL_VECTORS(bfloat)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(uchar)
MSL_VECTORS(ulong)

template <class To, class From>
To as_type(From f) {
  return __builtin_bit_cast(To, f);
}
#define MSL_FUNCTION(name) \
  float name(float);       \
  float name(bfloat) = delete;
#define MSL_PRECISE  \
  MSL_FUNCTION(exp)  \
  MSL_FUNCTION(exp2) \
  MSL_FUNCTION(log)  \
  MSL_FUNCTION(log2) \
  MSL_FUNCTION(sin)  \
  MSL_FUNCTION(cos)  \
  MSL_FUNCTION(sqrt) \
  MSL_FUNCTION(rsqrt)
namespace precise {
MSL_PRECISE
}
MSL_PRECISE
MSL_FUNCTION(fabs)
MSL_FUNCTION(floor)
MSL_FUNCTION(ceil)
MSL_FUNCTION(rint)
MSL_FUNCTION(trunc)
float fma(float, float, float);
bool isnan(float);
uint popcount(uint);
uint ctz(uint);
uint clz(uint);
template <class T>
T min(T, T);
template <class T>
T max(T, T);
template <class T>
T select(T, T, bool);

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
enum memory_order { memory_order_relaxed };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T, class U>
struct msl_same {
  enum { value = 0 };
};
template <class T>
struct msl_same<T, T> {
  enum { value = 1 };
};
#define MSL_SIMD(name, ...)                                                        \
  template <class T>                                                               \
  T name(T __VA_ARGS__) {                                                          \
    static_assert(!msl_same<T, bfloat>::value, "convert a bfloat to float first"); \
    return T();                                                                    \
  }
MSL_SIMD(simd_sum)
MSL_SIMD(simd_max)
MSL_SIMD(simd_min)
MSL_SIMD(simd_prefix_exclusive_sum)
MSL_SIMD(simd_prefix_inclusive_sum)
MSL_SIMD(simd_broadcast_first)
MSL_SIMD(simd_broadcast, , ushort)
MSL_SIMD(simd_shuffle, , ushort)
MSL_SIMD(simd_shuffle_xor, , ushort)
MSL_SIMD(simd_shuffle_down, , ushort)
MSL_SIMD(simd_shuffle_up, , ushort)
bool simd_any(bool);
bool simd_all(bool);

template <class T, int R, int C>
struct simdgroup_matrix {
  vec<T, 2>& thread_elements();
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
template <class T, int R, int C>
simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
#define MSL_MATRIX_MEMORY(space)                                              \
  template <class T>                                                          \
  void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8); \
  template <class T>                                                          \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T*, ulong = 8);
MSL_MATRIX_MEMORY(MSL_device)
MSL_MATRIX_MEMORY(MSL_threadgroup)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>&,
                                   simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>,
                                   simdgroup_matrix<C, 8, 8>);

enum atomic_uint : uint {};  // clang constructs no classes in an address space
enum atomic_int : int {};
#define MSL_ATOMIC(space, type, T)                           \
  T atomic_fetch_add_explicit(space type*, T, memory_order); \
  T atomic_fetch_or_explicit(space type*, T, memory_order);  \
  T atomic_load_explicit(const space type*, memory_order);   \
  void atomic_store_explicit(space type*, T, memory_order);
MSL_ATOMIC(MSL_device, atomic_uint, uint)
MSL_ATOMIC(MSL_device, atomic_int, int)
MSL_ATOMIC(MSL_threadgroup, atomic_uint, uint)
MSL_ATOMIC(MSL_threadgroup, atomic_int, int)

}  // namespace metal

namespace msl {

template <class T>
struct SpaceOf {
  enum { value = 0 };
};
template <class T>
struct SpaceOf<MSL_device T> {
  enum { value = 1 };
};
template <class T>
struct SpaceOf<MSL_CONSTANT_SPACE T> {
  enum { value = 2 };
};
template <class T>
struct SpaceOf<MSL_threadgroup T> {
  enum { value = 3 };
};
template <class P>
struct Space {
  enum { value = -1 };
};
template <class T>
struct Space<T*> {
  enum { value = SpaceOf<T>::value };
};
template <class T>
struct Space<T&> {
  enum { value = SpaceOf<T>::value };
};

template <int I>
struct buffer_ {
  template <class P>
  static constexpr int meta() {
    static_assert(int(Space<P>::value) == 1 || int(Space<P>::value) == 2,
                  "a [[buffer]] is device or constant");
    static_assert(I < 31, "Metal has 31 buffers");
    return 0;
  }
};
template <int I>
struct threadgroup_ {
  template <class P>
  static constexpr int meta() {
    static_assert(int(Space<P>::value) == 3, "a [[threadgroup]] is threadgroup");
    return 0;
  }
};
#define MSL_BUILTIN(name)                                                              \
  struct name {                                                                        \
    template <class P>                                                                 \
    static constexpr int meta() {                                                      \
      static_assert(int(Space<P>::value) == -1, "a built-in value is taken by value"); \
      return 0;                                                                        \
    }                                                                                  \
  };
MSL_BUILTIN(threadgroup_position_in_grid)
MSL_BUILTIN(thread_position_in_threadgroup)
MSL_BUILTIN(thread_position_in_grid)
MSL_BUILTIN(threads_per_threadgroup)
MSL_BUILTIN(dispatch_threads_per_threadgroup)
MSL_BUILTIN(threadgroups_per_grid)
MSL_BUILTIN(threads_per_grid)
MSL_BUILTIN(thread_index_in_threadgroup)
MSL_BUILTIN(thread_index_in_simdgroup)
MSL_BUILTIN(simdgroup_index_in_threadgroup)
MSL_BUILTIN(simdgroups_per_threadgroup)

}  // namespace msl

// uint2(a, b): clang has no such conversion of its vectors. A macro with parameters leaves the type's name
// alone wherever no ( follows.
#define float2(...) msl_make_float2(__VA_ARGS__)
#define float3(...) msl_make_float3(__VA_ARGS__)
#define float4(...) msl_make_float4(__VA_ARGS__)
#define bfloat4(...) msl_make_bfloat4(__VA_ARGS__)
#define int2(...) msl_make_int2(__VA_ARGS__)
#define int4(...) msl_make_int4(__VA_ARGS__)
#define uint2(...) msl_make_uint2(__VA_ARGS__)
#define uint3(...) msl_make_uint3(__VA_ARGS__)
#define uint4(...) msl_make_uint4(__VA_ARGS__)

#define MSL_UNPACK(...) __VA_ARGS__
#define MSL_ENTRY(id, name, function, call, meta, limit, file, line) \
  extern const auto use_##id = &MSL_UNPACK function;                 \
  static constexpr int bindings_##id[] = {MSL_UNPACK meta};          \
  static_assert(int limit <= 1024 && int limit % 32 == 0, "threads: whole simdgroups, at most 1024");
#define MSL_THREADGROUP(type, name, dims) static MSL_threadgroup MSL_UNPACK type name dims
#define MSL_CONSTANT static const MSL_CONSTANT_SPACE
#define MSL_kernel
#define METAL_FUNC inline __attribute__((__always_inline__))
#define MSL_SHARED_FUNC METAL_FUNC
