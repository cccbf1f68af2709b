// Addresses, pages, vector loads and rounded stores, for every family.
//
// T is the activation type, bfloat or float. `at` is the one place where a number becomes a pointer.
#pragma once

#include <metal_stdlib>

#include "metal/launch.h"
#include "metal/params.h"

using namespace metal;
using namespace flashnext;

template <typename T>
METAL_FUNC device T* at(ulong address, ulong offset_bytes = 0) {
  return reinterpret_cast<device T*>(address + offset_bytes);
}

// A place in the page that holds `position` of a sequence.
template <typename T>
METAL_FUNC device T* in_page(device const Sequence& s, int position, ulong offset_bytes) {
  return at<T>(at<const ulong>(s.page_table)[position / kPageTokens], offset_bytes);
}

METAL_FUNC float4 load4(device const float* p) { return *reinterpret_cast<device const float4*>(p); }
METAL_FUNC float4 load4(device const bfloat* p) {
  return float4(*reinterpret_cast<device const bfloat4*>(p));
}

// x as T stores it.
template <typename T>
METAL_FUNC float rounded(float x) {
  return float(T(x));
}

METAL_FUNC int smaller(int a, int b) { return a < b ? a : b; }
METAL_FUNC int larger(int a, int b) { return a > b ? a : b; }
METAL_FUNC uint smaller(uint a, uint b) { return a < b ? a : b; }
