// The seam of the instruction paths: a vector of kLanes floats and the operations kernels are written in.
//
// Kernel files are compiled once for each path, with FLASHNEXT_PATH naming it and flags to match. Everything
// they define lives in that path's namespace and uses no templates of the standard library, so that the
// linker can never pick code compiled for one path for another. The one exception is std::bit_cast, which
// optimized builds inline. tests/project/test_symbols.py looks at the symbols. A new path adds its vector
// type here.
//
// The portable path has no fused multiply-add: fma(a, b, c) rounds twice there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace flashnext::cpu::FLASHNEXT_PATH {

#if defined(__AVX2__)

constexpr int kLanes = 8;

struct F {
  __m256 v;
};

inline F set1(float x) { return {_mm256_set1_ps(x)}; }
inline F zero() { return {_mm256_setzero_ps()}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F load(const bfloat16* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.v); }
inline void store(bfloat16* p, F x) {
  const __m256i u = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256 nan = _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q);
  r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(nan));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The second argument wins where either is NaN.
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
// Bit i is set where a >= b in lane i; NaN is not.
inline uint32_t ge_bits(F a, F b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
// x where a >= b, else 0; and x where a is not b, else 0.
inline F keep_ge(F a, F b, F x) { return {_mm256_and_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ), x.v)}; }
inline F drop_equal(F a, F b, F x) { return {_mm256_andnot_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ), x.v)}; }
inline F round(F a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for whole n in -126 .. 127.
inline F pow2(F n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
}
inline float scalar_fma(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

#else

constexpr int kLanes = 8;

struct F {
  float v[kLanes];
};

#define FLASHNEXT_LANES(expr)                     \
  F r;                                            \
  for (int i = 0; i < kLanes; ++i) r.v[i] = expr; \
  return r
inline F set1(float x) { FLASHNEXT_LANES(x); }
inline F zero() { FLASHNEXT_LANES(0.0f); }
inline F load(const float* p) { FLASHNEXT_LANES(p[i]); }
inline F load(const bfloat16* p) { FLASHNEXT_LANES(to_float(p[i])); }
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline void store(bfloat16* p, F x) {
  for (int i = 0; i < kLanes; ++i) p[i] = round_bfloat16(x.v[i]);
}
inline F operator+(F a, F b) { FLASHNEXT_LANES(a.v[i] + b.v[i]); }
inline F operator-(F a, F b) { FLASHNEXT_LANES(a.v[i] - b.v[i]); }
inline F operator*(F a, F b) { FLASHNEXT_LANES(a.v[i] * b.v[i]); }
inline F operator/(F a, F b) { FLASHNEXT_LANES(a.v[i] / b.v[i]); }
inline F fma(F a, F b, F c) { FLASHNEXT_LANES(a.v[i] * b.v[i] + c.v[i]); }
// The second argument wins where either is NaN.
inline F min(F a, F b) { FLASHNEXT_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F max(F a, F b) { FLASHNEXT_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
// Bit i is set where a >= b in lane i; NaN is not.
inline uint32_t ge_bits(F a, F b) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint32_t{a.v[i] >= b.v[i]} << i;
  return bits;
}
// x where a >= b, else 0; and x where a is not b, else 0.
inline F keep_ge(F a, F b, F x) { FLASHNEXT_LANES(a.v[i] >= b.v[i] ? x.v[i] : 0.0f); }
inline F drop_equal(F a, F b, F x) { FLASHNEXT_LANES(a.v[i] == b.v[i] ? 0.0f : x.v[i]); }
// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest whole number, ties to even.
inline F round(F a) { FLASHNEXT_LANES((a.v[i] + 12582912.0f) - 12582912.0f); }
// 2^n for whole n in -126 .. 127.
inline F pow2(F n) {
  FLASHNEXT_LANES(std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23));
}
#undef FLASHNEXT_LANES
inline float scalar_fma(float a, float b, float c) { return a * b + c; }

#endif

// Sum of the lanes in one fixed tree: ((0+4)+(2+6)) + ((1+5)+(3+7)).
inline float reduce_add(F x) {
  float a[kLanes];
  store(a, x);
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

// e^x within 2 ulp; 0 below about -104, infinity above about 88.73, NaN for NaN.
inline F exp(F x) {
  x = min(set1(89.0f), max(set1(-106.0f), x));
  const F n = round(x * set1(1.44269504088896341f));
  F r = fma(n, set1(-0.693145751953125f), x);  // ln 2 in two parts; n * the first part is exact
  r = fma(n, set1(-1.42860682030941723212e-6f), r);
  F p = set1(1.9841270e-4f);  // 1/7!
  p = fma(p, r, set1(1.3888889e-3f));
  p = fma(p, r, set1(8.3333333e-3f));
  p = fma(p, r, set1(4.1666667e-2f));
  p = fma(p, r, set1(1.6666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const F half = round(n * set1(0.5f));
  return (p * pow2(half)) * pow2(n - half);
}

inline F sigmoid(F x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }
inline F silu(F x) { return x * sigmoid(x); }

// One value through the vector code, so that a value's bits do not depend on where it stands.
inline float first(F x) {
  float a[kLanes];
  store(a, x);
  return a[0];
}
inline float exp(float x) { return first(exp(set1(x))); }
inline float sigmoid(float x) { return first(sigmoid(set1(x))); }
inline float silu(float x) { return first(silu(set1(x))); }

inline float round_to(float x, const float*) { return x; }
inline float round_to(float x, const bfloat16*) { return to_float(round_bfloat16(x)); }
// x rounded to T, as a float.
template <class T>
inline float rounded(float x) {
  return round_to(x, static_cast<const T*>(nullptr));
}
inline void put(float* p, float x) { *p = x; }
inline void put(bfloat16* p, float x) { *p = round_bfloat16(x); }

// sum x[i] * y[i], n a multiple of kLanes: one chain of fma a lane, ascending, then the tree.
template <class A, class B>
inline float dot(const A* x, const B* y, uint32_t n) {
  F acc = zero();
  for (uint32_t i = 0; i < n; i += kLanes) acc = fma(load(x + i), load(y + i), acc);
  return reduce_add(acc);
}
template <class A>
inline float sum_of_squares(const A* x, uint32_t n) {
  F acc = zero();
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F a = load(x + i);
    acc = fma(a, a, acc);
  }
  return reduce_add(acc);
}

// Copies n values to float.
template <class T>
inline void to_floats(const T* x, uint32_t n, float* out) {
  for (uint32_t i = 0; i < n; i += kLanes) store(out + i, load(x + i));
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
