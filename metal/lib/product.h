// Products of rows with a stored matrix, the one place where weights are read: y[r][c] = sum_k x[r][k]
// w[c][k].
//
// A weight is decoded to fp32, fma(scale, code, bias). Lane l takes inputs in runs of 16, those from 16 (l +
// 32 i) on for i = 0, 1, ..., all in one chain of fma by ascending input; the lanes are added by add_lanes.
// That order hangs on nothing else, so one row and eight rows have equal bits. A run lies in one group of
// inputs.
//
// A simdgroup has kSimdColumns columns and up to kProductRows rows at a time, which share the decoded
// weights.
//
// The seam for tensor operations of later GPUs is `product`: what it gives is all that kernels use.
#pragma once

#include "metal/lib/memory.h"
#include "metal/lib/sums.h"

// A function that a host's compiler need not copy to each place that calls it (metal/host); a GPU's does.
#ifndef FLASHNEXT_SHARED_FUNC
#define FLASHNEXT_SHARED_FUNC METAL_FUNC
#endif

FLASHNEXT_CONSTANT uint kRun = 16;  // inputs that a lane takes at once

// A matrix [.., n_in], its rows packed as `format` says.
struct Stored {
  device const uchar* codes;
  device const bfloat* scales;
  device const bfloat* biases;
  uint bits, group, n_in;

  METAL_FUNC ulong row_bytes() const { return ulong(n_in) * bits / 8; }
};

METAL_FUNC Stored stored(device const uchar* codes,
                         device const bfloat* scales,
                         device const bfloat* biases,
                         constant Format& format,
                         uint n_in) {
  return {codes, scales, biases, format.bits, format.group, n_in};
}
// Matrix `i` of a batch, its strides in bytes.
METAL_FUNC Stored of_batch(Stored w, ulong i, ulong codes_stride, ulong scales_stride) {
  w.codes += i * codes_stride;
  if (w.bits < 16) {
    w.scales += i * scales_stride / sizeof(bfloat);
    w.biases += i * scales_stride / sizeof(bfloat);
  }
  return w;
}

// 16 codes of BITS bits, a little-endian string of bits, as words.
template <int BITS>
METAL_FUNC void load_words(device const uchar* from, thread uint* words) {
  if (BITS == 8) {
    const uint4 v = *reinterpret_cast<device const uint4*>(from);
    for (uint i = 0; i < 4; i++) words[i] = v[i];
  } else if (BITS == 4) {
    const uint2 v = *reinterpret_cast<device const uint2*>(from);
    for (uint i = 0; i < 2; i++) words[i] = v[i];
  } else if (BITS % 2 == 0) {
    for (int i = 0; i < BITS / 2; i++) words[i] = reinterpret_cast<device const uint*>(from)[i];
  } else {  // an odd number of halves
    device const ushort* halves = reinterpret_cast<device const ushort*>(from);
    for (int i = 0; i < BITS / 2; i++) words[i] = halves[2 * i] | uint(halves[2 * i + 1]) << 16;
    words[BITS / 2] = halves[BITS - 1];
  }
}

// Code I of those words.
template <int BITS, int I>
METAL_FUNC float code(thread const uint* words) {
  constexpr int word = I * BITS / 32, shift = I * BITS % 32;
  uint bits = words[word] >> shift;
  if (shift + BITS > 32) bits |= words[word + 1] << (32 - shift) % 32;
  return float(bits & ((1u << BITS) - 1));
}

// Weights as they are stored, 16 of each column of a simdgroup. They stay packed until they are used, four of
// a column at a time: registers are what limits how many simdgroups share a core, and with them how many
// loads are in flight.
template <int BITS>
struct Run {
  enum { kCodeBits = BITS < 16 ? BITS : 0 };
  uint words[kSimdColumns][kCodeBits / 2 + 2];
  float scales[kSimdColumns], biases[kSimdColumns];
  device const uchar* plain[kSimdColumns];

  METAL_FUNC void load(Stored w, ulong column, ulong last, uint k) {
    for (int c = 0; c < kSimdColumns; c++) {
      const ulong row = column + ulong(c) < last ? column + ulong(c) : last;
      if (BITS >= 16) {
        plain[c] = w.codes + (row * w.n_in + k) * (BITS / 8);
      } else {
        load_words<kCodeBits>(w.codes + row * w.row_bytes() + k * BITS / 8, words[c]);
        const ulong group = row * (w.n_in / w.group) + k / w.group;
        scales[c] = float(w.scales[group]);
        biases[c] = float(w.biases[group]);
      }
    }
  }

  // Weights I .. I + 3 of column c.
  template <int I>
  METAL_FUNC float4 four(int c) const {
    if (BITS == 32) return load4(reinterpret_cast<device const float*>(plain[c]) + I);
    if (BITS == 16) return load4(reinterpret_cast<device const bfloat*>(plain[c]) + I);
    return float4(fma(scales[c], code<kCodeBits, I>(words[c]), biases[c]),
                  fma(scales[c], code<kCodeBits, I + 1>(words[c]), biases[c]),
                  fma(scales[c], code<kCodeBits, I + 2>(words[c]), biases[c]),
                  fma(scales[c], code<kCodeBits, I + 3>(words[c]), biases[c]));
  }
};

// One weight, for whoever looks up single rows.
METAL_FUNC float weight(Stored w, ulong row, uint k) {
  if (w.bits == 32) return reinterpret_cast<device const float*>(w.codes)[row * w.n_in + k];
  if (w.bits == 16) return float(reinterpret_cast<device const bfloat*>(w.codes)[row * w.n_in + k]);
  const uint bit = k * w.bits, shift = bit % 8;
  device const uchar* from = w.codes + row * w.row_bytes() + bit / 8;
  uint code = from[0] >> shift;
  if (shift + w.bits > 8) code |= uint(from[1]) << (8 - shift);
  const ulong group = row * (w.n_in / w.group) + k / w.group;
  return fma(float(w.scales[group]), float(code & ((1u << w.bits) - 1)), float(w.biases[group]));
}

// M rows of activations.
template <typename T, int M>
struct Rows {
  device const T* row[M];
};

// Adds inputs k + I .. k + I + 3 of M rows and all columns.
template <typename T, int M, int BITS, int I>
METAL_FUNC void add_four(thread const Run<BITS>& run, Rows<T, M> x, uint k, thread float* sums) {
  float4 q[kSimdColumns];
  for (int c = 0; c < kSimdColumns; c++) q[c] = run.template four<I>(c);
  for (int m = 0; m < M; m++) {
    const float4 v = load4(x.row[m] + k + I);
    for (int c = 0; c < kSimdColumns; c++) {
      for (uint i = 0; i < 4; i++) sums[c * M + m] = fma(q[c][i], v[i], sums[c * M + m]);
    }
  }
}

template <typename T, int M, int BITS>
METAL_FUNC void accumulate(Stored w, ulong column, ulong last, Rows<T, M> x, thread float* sums, uint lane) {
  for (uint k = lane * kRun; k < w.n_in; k += kRun * kSimdLanes) {
    Run<BITS> run;
    run.load(w, column, last, k);
    add_four<T, M, BITS, 0>(run, x, k, sums);
    add_four<T, M, BITS, 4>(run, x, k, sums);
    add_four<T, M, BITS, 8>(run, x, k, sums);
    add_four<T, M, BITS, 12>(run, x, k, sums);
  }
}

// Which of a simdgroup's products a lane holds: of row m < M and column c; several lanes may hold one,
// `first` says which of them stores it.
template <int M>
struct Held {
  uint m, c;
  bool first;

  METAL_FUNC Held(uint lane) {
    const uint value = lane * (kSimdColumns * M) / kSimdLanes;
    m = value % M;
    c = value / M;
    first = lane % (kSimdLanes / (kSimdColumns * M)) == 0;
  }
};

// The lane's product (Held) of M rows with the matrix rows from `column` on, none beyond `last`.
template <typename T, int M>
FLASHNEXT_SHARED_FUNC float product(Stored w, ulong column, ulong last, Rows<T, M> x, uint lane) {
  float sums[kSimdColumns * M];
  for (int i = 0; i < kSimdColumns * M; i++) sums[i] = 0;
  switch (w.bits) {
    case 2: accumulate<T, M, 2>(w, column, last, x, sums, lane); break;
    case 3: accumulate<T, M, 3>(w, column, last, x, sums, lane); break;
    case 4: accumulate<T, M, 4>(w, column, last, x, sums, lane); break;
    case 5: accumulate<T, M, 5>(w, column, last, x, sums, lane); break;
    case 6: accumulate<T, M, 6>(w, column, last, x, sums, lane); break;
    case 8: accumulate<T, M, 8>(w, column, last, x, sums, lane); break;
    case 16: accumulate<T, M, 16>(w, column, last, x, sums, lane); break;
    default: accumulate<T, M, 32>(w, column, last, x, sums, lane);
  }
  return add_lanes_of<kSimdColumns * M>(sums, lane);
}

// Calls body.run<M>(row) for rows from `first` to before `end` in blocks of M = 8, 4, 2 or 1; a block may
// reach beyond the last row.
template <typename Body>
METAL_FUNC void each_block(uint first, uint end, Body body) {
  for (uint row = first; row < end;) {
    const uint left = end - row;
    if (left > 4) {
      body.template run<8>(row);
      row += 8;
    } else if (left > 2) {
      body.template run<4>(row);
      row += 4;
    } else if (left == 2) {
      body.template run<2>(row);
      row += 2;
    } else {
      body.template run<1>(row);
      row += 1;
    }
  }
}
