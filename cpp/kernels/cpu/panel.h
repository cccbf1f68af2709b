// Products of rows with a stored matrix, the one place where weights are read: y[r][c] = sum_k x[r][k] *
// w[c][k].
//
// bfloat16 rows with affine codes go to codes.h. All else is fp32: a weight is decoded as fma(scale, code,
// bias); lane l sums the inputs k = l (mod kLanes) by ascending k in one chain of fma; the lanes are added by
// the tree of reduce_add, for any number of rows. One row reads the weights straight from memory; several
// rows share a decoded panel.
#pragma once

#include "device/cpu/task.h"
#include "kernels/cpu/codes.h"
#include "kernels/cpu/simd.h"
#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

constexpr uint32_t kPanelColumns = kCodeColumns;  // columns of a panel at most
constexpr uint32_t kPanelInputs = 512;            // inputs of a panel at most
constexpr uint32_t kPanelRows = kCodeRows;        // rows that share a decoded panel
constexpr uint32_t kMaxInputs = 1 << 16;

// Rows of a stored matrix.
struct Matrix {
  const uint8_t* codes;
  const bfloat16* scales;
  const bfloat16* biases;
  Format format;
  uint32_t n_in;

  size_t row_bytes() const { return size_t{n_in} * format.bits / 8; }
  Matrix from_row(size_t row) const {
    Matrix m = *this;
    m.codes += row * row_bytes();
    if (format.bits < 16) {
      m.scales += row * (n_in / format.group);
      m.biases += row * (n_in / format.group);
    }
    return m;
  }
  // One of a batch, its strides in bytes.
  Matrix of_batch(size_t i, uint64_t codes_stride, uint64_t scales_stride) const {
    Matrix m = *this;
    m.codes += i * codes_stride;
    if (format.bits < 16) {
      m.scales += i * scales_stride / sizeof(bfloat16);
      m.biases += i * scales_stride / sizeof(bfloat16);
    }
    return m;
  }
};

inline Matrix matrix(void* codes, void* scales, void* biases, Format format, uint32_t n_in) {
  return {static_cast<const uint8_t*>(codes), static_cast<const bfloat16*>(scales),
          static_cast<const bfloat16*>(biases), format, n_in};
}

// Rows of activations: row r is base + index[r] * stride, or base + r * stride without an index.
template <class T>
struct Rows {
  const T* base;
  size_t stride;
  const int32_t* index = nullptr;

  const T* operator[](uint32_t r) const { return base + size_t(index ? index[r] : int32_t(r)) * stride; }
};

// Scratch of a product. The sums of a row are handed to the caller before the next panel of rows begins.
struct FloatScratch {
  alignas(64) float x[kPanelRows * kPanelInputs];
  alignas(64) float weights[kPanelColumns * kPanelInputs];
  alignas(64) float sums[kPanelRows * kPanelColumns * kLanes];
  alignas(64) float row[kMaxInputs];  // one row's inputs
  alignas(64) float y[kPanelColumns];
};
struct PanelScratch {
  KeptBlocks* kept;
  union {
    FloatScratch f;
    CodeScratch codes;
  };
};

// The task's scratch, which begins with a PanelScratch.
template <class Scratch = PanelScratch>
Scratch& product_scratch(const Task& t) {
  static_assert(sizeof(Scratch) <= kScratchBytes && sizeof(KeptBlocks) <= kKeptBytes);
  auto* kept = reinterpret_cast<KeptBlocks*>(t.kept);
  if (kept->segment != t.segment) {
    kept->segment = t.segment;
    kept->n_rows = kept->n_inputs = kept->n_groups = 0;
  }
  reinterpret_cast<PanelScratch*>(t.scratch)->kept = kept;
  return *reinterpret_cast<Scratch*>(t.scratch);
}

// Decodes inputs k0 .. k0 + n of one matrix row to fp32. k0 and n are multiples of 32 (of the group where it
// is larger).
void decode(const Matrix& w, uint32_t row, uint32_t k0, uint32_t n, float* out);
// One row of inputs: y[c] = dot(x, row col0 + c), c < n_cols.
void dot_row(const Matrix& w, uint32_t col0, uint32_t n_cols, const float* x, float* y);
// Adds to sums[r][c][lane] the products of n_rows rows of x with n_cols rows of weights over n inputs
// (strides kPanelInputs).
void multiply_panel(const float* x, uint32_t n_rows, const float* weights, uint32_t n_cols, uint32_t n,
                    float* sums);

// Calls emit(r, y) for each r < n_rows, y[c] being the product of row r with matrix row col0 + c, c < n_cols
// <= kPanelColumns. ahead: as in codes.h.
template <class Emit>
inline void product_codes(const Matrix& w, uint32_t col0, uint32_t n_cols, Rows<bfloat16> x, uint32_t n_rows,
                          const Matrix& ahead, CodeScratch& s, KeptBlocks& kept, Emit emit) {
  const bfloat16* rows[kCodeRows];
  for (uint32_t r0 = 0; r0 < n_rows; r0 += kCodeRows) {
    const uint32_t n = n_rows - r0 < kCodeRows ? n_rows - r0 : kCodeRows;
    for (uint32_t r = 0; r < n; ++r) rows[r] = x[r0 + r];
    multiply_codes(w, col0, n_cols, rows, n, ahead, s, kept);
    for (uint32_t r = 0; r < n; ++r) emit(r0 + r, static_cast<const float*>(s.y + r * kCodeColumns));
  }
}

template <class T, class Emit>
inline void product_floats(const Matrix& w, uint32_t col0, uint32_t n_cols, Rows<T> x, uint32_t n_rows,
                           FloatScratch& s, Emit emit) {
  if (n_rows == 1) {
    to_floats(x[0], w.n_in, s.row);
    dot_row(w, col0, n_cols, s.row, s.y);
    emit(0u, static_cast<const float*>(s.y));
    return;
  }
  for (uint32_t r0 = 0; r0 < n_rows; r0 += kPanelRows) {
    const uint32_t rows = n_rows - r0 < kPanelRows ? n_rows - r0 : kPanelRows;
    std::memset(s.sums, 0, size_t{rows} * kPanelColumns * kLanes * sizeof(float));
    for (uint32_t k0 = 0; k0 < w.n_in; k0 += kPanelInputs) {
      const uint32_t n = w.n_in - k0 < kPanelInputs ? w.n_in - k0 : kPanelInputs;
      for (uint32_t c = 0; c < n_cols; ++c) decode(w, col0 + c, k0, n, s.weights + c * kPanelInputs);
      for (uint32_t r = 0; r < rows; ++r) to_floats(x[r0 + r] + k0, n, s.x + r * kPanelInputs);
      multiply_panel(s.x, rows, s.weights, n_cols, n, s.sums);
    }
    for (uint32_t r = 0; r < rows; ++r) {
      const float* lanes = s.sums + size_t{r} * kPanelColumns * kLanes;
      for (uint32_t c = 0; c < n_cols; ++c) s.y[c] = reduce_add(load(lanes + c * kLanes));
      emit(r0 + r, static_cast<const float*>(s.y));
    }
  }
}

template <class Emit>
inline void product(const Matrix& w, uint32_t col0, uint32_t n_cols, Rows<bfloat16> x, uint32_t n_rows,
                    const Matrix& ahead, PanelScratch& s, Emit emit) {
  if (w.format.bits < 16) return product_codes(w, col0, n_cols, x, n_rows, ahead, s.codes, *s.kept, emit);
  product_floats(w, col0, n_cols, x, n_rows, s.f, emit);
}
template <class Emit>
inline void product(const Matrix& w, uint32_t col0, uint32_t n_cols, Rows<float> x, uint32_t n_rows,
                    const Matrix&, PanelScratch& s, Emit emit) {
  product_floats(w, col0, n_cols, x, n_rows, s.f, emit);
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
