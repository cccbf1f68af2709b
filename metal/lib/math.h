// exp, sigmoid, cos and sin in plain operations and fma, so that the shim, every GPU and every compiler give
// equal bits where division does.
#pragma once

#include <metal_stdlib>

using namespace metal;

METAL_FUNC float power_of_two(float n) { return as_type<float>(uint(int(n) + 127) << 23); }  // -126 .. 127

// e^x / 2^n for the whole number n next to x / ln 2.
METAL_FUNC float exponential_part(float x, thread float& n) {
  n = rint(x * 1.44269504088896341);
  float r = fma(n, -0.693145751953125, x);  // ln 2 in two parts; n times the first is exact
  r = fma(n, -1.42860682030941723212e-6, r);
  float p = 1.9841270e-4;  // 1/7!
  p = fma(p, r, 1.3888889e-3);
  p = fma(p, r, 8.3333333e-3);
  p = fma(p, r, 4.1666667e-2);
  p = fma(p, r, 1.6666667e-1);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  return fma(p, r, 1.0);
}

// e^x within 2 units in the last place; 0 below about -104, infinity above about 88.73, NaN for NaN.
METAL_FUNC float exponential(float x) {
  if (isnan(x)) return x;
  float n;
  const float p = exponential_part(x < -106.0 ? -106.0 : x > 89.0 ? 89.0 : x, n);
  const float part = rint(n * 0.5);
  return (p * power_of_two(part)) * power_of_two(n - part);
}

METAL_FUNC float sigmoid(float x) { return 1.0 / (1.0 + exponential(-x)); }
METAL_FUNC float silu(float x) { return x * sigmoid(x); }

// log(1 + x) for 0 <= x <= 1, within 4 units: what rounding 1 + x loses is put back.
METAL_FUNC float log_of_one_plus(float x) {
  const float u = 1.0 + x;
  return u == 1.0 ? x : precise::log(u) * (x / (u - 1.0));
}

struct Turn {
  float cos, sin;
};

// cos and sin of an angle of up to 2^24, each within 2 * 2^-24. Polynomials: Cephes, sinf.c.
METAL_FUNC Turn turn(float angle) {
  // Quarter turns, wrong by at most one: a product near 2^24 has no bits behind the point. So the angle less
  // n times the first part of pi / 2 is exact: it is below 2 and a multiple of 2^-23 or of the angle's own
  // unit.
  const float n = rint(angle * 0.636619772367581343);
  const float first = fma(n, -1.57079637050628662109375, angle);
  const float second = fma(n, 4.37113900018624283e-8, first);
  const float lost = fma(n, 4.37113900018624283e-8, first - second);
  const float more = rint(second * 0.636619772367581343);
  float r = fma(more, -1.57079637050628662109375, second);
  r = fma(more, 4.37113900018624283e-8, r) + lost;
  const float z = r * r;
  float s = fma(z, -1.9515295891e-4, 8.3321608736e-3);
  s = fma(s, z, -1.6666654611e-1);
  s = fma(s * z, r, r);
  float c = fma(z, 2.443315711809948e-5, -1.388731625493765e-3);
  c = fma(c, z, 4.166664568298827e-2);
  c = fma(c * z, z, fma(z, -0.5, 1.0));
  if (isnan(z)) return {z, z};
  const int quarter = (int(n) + int(more)) & 3;
  const float x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
  return {quarter == 1 || quarter == 2 ? -x : x, quarter >= 2 ? -y : y};
}

METAL_FUNC float inverse_rms(float sum_of_squares, uint n, float eps) {
  return 1.0 / precise::sqrt(sum_of_squares / float(n) + eps);
}

// The axis whose position turns frequency j: h where j mod 3 = 1, w where j mod 3 = 2, below three times the
// axis' section; else t.
METAL_FUNC uint rotary_axis(uint j, constant uint* section) {
  const uint axis = j % 3;
  return axis != 0 && j < 3 * section[axis] ? axis : 0;
}
