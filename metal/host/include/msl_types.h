// Types and functions of Metal's language that the flavours share which run kernels (cpu, cuda). A flavour
// defines MSL_FN, how a function is marked, before it includes this.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "msl_argument.h"

namespace metal {

using uint = unsigned int;
using uchar = unsigned char;
using ushort = unsigned short;
using ulong = unsigned long;
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

template <class To, class From>
MSL_FN To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs equal sizes");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// From a float only explicitly: Apple's compiler refuses `bfloat x = 1.0f`. No arithmetic of its own, so that
// a kernel says where it rounds.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  MSL_FN explicit bfloat(T v) : bits(round(static_cast<float>(v))) {}
  MSL_FN operator float() const { return as_type<float>(static_cast<uint32_t>(bits) << 16); }

  MSL_FN static uint16_t round(float f) {  // to nearest, ties to even; a NaN stays one
    const uint32_t u = as_type<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
    return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
};

template <class T>
struct atomic {
  T v;
};
using atomic_uint = atomic<uint>;
using atomic_int = atomic<int>;

// Vectors: elements by name and by index, and operators element by element. No swizzles.
template <class T, int N>
struct vec;
template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  MSL_FN explicit vec(T a) : x(a), y(a) {}
  MSL_FN vec(T a, T b) : x(a), y(b) {}
  template <class U>
  MSL_FN explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
  MSL_FN T& operator[](uint i) { return (&x)[i]; }
  MSL_FN T operator[](uint i) const { return (&x)[i]; }
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  MSL_FN explicit vec(T a) : x(a), y(a), z(a) {}
  MSL_FN vec(T a, T b, T c) : x(a), y(b), z(c) {}
  template <class U>
  MSL_FN explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
  MSL_FN T& operator[](uint i) { return (&x)[i]; }
  MSL_FN T operator[](uint i) const { return (&x)[i]; }
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  MSL_FN explicit vec(T a) : x(a), y(a), z(a), w(a) {}
  MSL_FN vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  template <class U>
  MSL_FN explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
  MSL_FN T& operator[](uint i) { return (&x)[i]; }
  MSL_FN T operator[](uint i) const { return (&x)[i]; }
};
#define MSL_VECTOR_OPERATOR(op)                                                                  \
  template <class T, int N>                                                                      \
  MSL_FN vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {                                       \
    for (uint i = 0; i < N; i++) a[i] = T(a[i] op b[i]);                                         \
    return a;                                                                                    \
  }                                                                                              \
  template <class T, int N, class S, class = std::enable_if_t<std::is_convertible<S, T>::value>> \
  MSL_FN vec<T, N> operator op(vec<T, N> a, S b) {                                               \
    return a op vec<T, N>(T(b));                                                                 \
  }                                                                                              \
  template <class T, int N, class S, class = std::enable_if_t<std::is_convertible<S, T>::value>> \
  MSL_FN vec<T, N> operator op(S a, vec<T, N> b) {                                               \
    return vec<T, N>(T(a)) op b;                                                                 \
  }                                                                                              \
  template <class T, int N, class S>                                                             \
  MSL_FN vec<T, N>& operator op## = (vec<T, N> & a, S b) {                                       \
    return a = a op b;                                                                           \
  }
MSL_VECTOR_OPERATOR(+)
MSL_VECTOR_OPERATOR(-)
MSL_VECTOR_OPERATOR(*)
MSL_VECTOR_OPERATOR(/)
MSL_VECTOR_OPERATOR(&)
MSL_VECTOR_OPERATOR(|)
MSL_VECTOR_OPERATOR(^)
MSL_VECTOR_OPERATOR(<<)
MSL_VECTOR_OPERATOR(>>)
#define MSL_VECTORS(T)    \
  using T##2 = vec<T, 2>; \
  using T##3 = vec<T, 3>; \
  using T##4 = vec<T, 4>;
MSL_VECTORS(float)
MSL_VECTORS(bfloat)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(uchar)
MSL_VECTORS(ulong)

// A bfloat argument is ambiguous for Apple's compiler: refused here.
#define MSL_FUNCTION(name, expr)              \
  MSL_FN float name(float x) { return expr; } \
  float name(bfloat) = delete;
#define MSL_PRECISE              \
  MSL_FUNCTION(exp, ::expf(x))   \
  MSL_FUNCTION(exp2, ::exp2f(x)) \
  MSL_FUNCTION(log, ::logf(x))   \
  MSL_FUNCTION(log2, ::log2f(x)) \
  MSL_FUNCTION(sin, ::sinf(x))   \
  MSL_FUNCTION(cos, ::cosf(x))   \
  MSL_FUNCTION(sqrt, ::sqrtf(x)) \
  MSL_FUNCTION(rsqrt, 1.0f / ::sqrtf(x))
namespace precise {
MSL_PRECISE
}
MSL_PRECISE
MSL_FUNCTION(fabs, ::fabsf(x))
MSL_FUNCTION(floor, ::floorf(x))
MSL_FUNCTION(ceil, ::ceilf(x))
MSL_FUNCTION(rint, ::nearbyintf(x))
MSL_FUNCTION(trunc, ::truncf(x))
MSL_FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
MSL_FN bool isnan(float x) { return x != x; }
MSL_FN uint popcount(uint x) { return uint(__builtin_popcount(x)); }
MSL_FN uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32u; }
MSL_FN uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32u; }
template <class T>
MSL_FN T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
MSL_FN T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
MSL_FN T select(T a, T b, bool second) {
  return second ? b : a;
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
MSL_FN mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order { memory_order_relaxed };

// A matrix of a simdgroup lies over its 32 lanes, two neighbours of a row each.
template <class T, int R, int C>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "8 x 8 only");
  vec<T, 2> e;
  MSL_FN vec<T, 2>& thread_elements() { return e; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
MSL_FN uint msl_row_of(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
MSL_FN uint msl_column_of(uint lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }
MSL_FN uint msl_lane_of(uint row, uint column) {
  return ((row & 4) | ((column / 4) << 1)) * 4 + (row % 4) * 2 + (column / 2) % 2;
}
template <class T, int R, int C>
MSL_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  return {vec<T, 2>(v, v)};
}

}  // namespace metal

namespace msl {

// What a launch has to bind: of buffers the size of an element, of bytes their number.
enum BindingKind { kBuiltin = 0, kBuffer = 1, kBytes = 2, kThreadgroup = 3 };
struct Binding {
  int kind, index, size;
};

// A built-in vector as the parameter's own type: a scalar takes x.
template <class P>
struct FromVector {
  MSL_FN static P make(metal::uint3 v) { return P(v.x); }
};
template <class T>
struct FromVector<metal::vec<T, 2>> {
  MSL_FN static metal::vec<T, 2> make(metal::uint3 v) { return {T(v.x), T(v.y)}; }
};
template <class T>
struct FromVector<metal::vec<T, 3>> {
  MSL_FN static metal::vec<T, 3> make(metal::uint3 v) { return {T(v.x), T(v.y), T(v.z)}; }
};
#define MSL_BUILTIN(name, expr)                              \
  struct name {                                              \
    template <class P, class C>                              \
    MSL_FN static P get(const C& c) {                        \
      (void)c;                                               \
      return FromVector<std::remove_const_t<P>>::make(expr); \
    }                                                        \
    template <class P>                                       \
    static Binding meta() {                                  \
      return {kBuiltin, 0, 0};                               \
    }                                                        \
  };
template <int I>
struct buffer_ {
  template <class P>
  struct Get;
  template <class T>
  struct Get<T*> {
    template <class C>
    MSL_FN static T* get(const C& c) {
      return reinterpret_cast<T*>(c.buffer(I));
    }
    static Binding meta() { return {kBuffer, I, int(sizeof(T))}; }
  };
  template <class T>
  struct Get<T&> {
    template <class C>
    MSL_FN static T& get(const C& c) {
      return *reinterpret_cast<T*>(const_cast<void*>(c.bytes(I)));
    }
    static Binding meta() { return {kBytes, I, int(sizeof(T))}; }
  };
  template <class P, class C>
  MSL_FN static P get(const C& c) {
    return Get<P>::get(c);
  }
  template <class P>
  static Binding meta() {
    return Get<P>::meta();
  }
};
template <int I>
struct threadgroup_ {
  template <class P, class C>
  MSL_FN static P get(const C& c) {
    return reinterpret_cast<P>(c.threadgroup(I));
  }
  template <class P>
  static Binding meta() {
    return {kThreadgroup, I, int(sizeof(std::remove_pointer_t<P>))};
  }
};

}  // namespace msl
