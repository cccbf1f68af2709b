// Products of bfloat16 rows with affine codes in whole numbers.
//
// A row's inputs become block floats: of each group of the weights' size, q = round(x * 2^(15-e)) as int16, e
// the exponent above the largest magnitude (at least -110). Inputs within 2^-7 of the largest are exact; the
// others move by at most 2^(e-16), less than a hundredth of the bfloat16 rounding that the largest has behind
// it. With I = sum code * q and S = sum q, both exact,
//
//   y = 0; for each group, ascending: y = fma(fma(S, bias, I * scale), 2^(e-15), y)
//
// so y has one chain of sums for any number of rows, and inside a group order does not matter. A group with a
// NaN or an infinity makes y NaN.
#pragma once

#include "kernels/cpu/simd.h"
#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

struct Matrix;

constexpr uint32_t kCodeColumns = 64;  // columns of a product at most
constexpr uint32_t kCodeRows = 64;     // rows of a product at most
constexpr uint32_t kFewRows =
    4;  // up to here rows are multiplied while codes are unpacked, beyond a panel is decoded first
constexpr uint32_t kCodeInputs = 512, kDecodedColumns = 16;  // of a decoded panel, at most
constexpr uint32_t kMinGroup = 32;
constexpr uint32_t kMaxCodeInputs = 1 << 16;

// Block floats of one row: q in the order in which codes are unpacked, one step and one sum a group.
struct Blocks {
  int16_t* q;
  float* step;
  float* sum;
};

struct CodeScratch {
  alignas(64) int16_t q[kFewRows * kMaxCodeInputs > kCodeRows* kCodeInputs ? kFewRows * kMaxCodeInputs
                                                                           : kCodeRows * kCodeInputs];
  alignas(64) float step[kFewRows * kMaxCodeInputs / kMinGroup], sum[kFewRows * kMaxCodeInputs / kMinGroup];
  alignas(64) int16_t weights[kDecodedColumns * kCodeInputs];
  alignas(64) float scales[kDecodedColumns * kCodeInputs / kMinGroup],
      biases[kDecodedColumns * kCodeInputs / kMinGroup];
  alignas(64) float y[kCodeRows * kCodeColumns];
};

// The blocks of whole rows that a worker has turned in this segment, so that a row which many of its tasks
// multiply is turned once. Lies in Task::kept.
struct KeptBlocks {
  static constexpr uint32_t kRows = 128, kInputs = 1 << 18;

  uint64_t segment;
  uint32_t n_rows, n_inputs, n_groups;
  struct Row {
    const bfloat16* x;
    uint32_t n;
    Format format;
    Blocks blocks;
  } rows[kRows];
  alignas(64) int16_t q[kInputs];
  alignas(64) float step[kInputs / kMinGroup], sum[kInputs / kMinGroup];

  // The blocks of n inputs at x, turned into `otherwise` where there is no room.
  Blocks of(const bfloat16* x, uint32_t n, Format format, Blocks otherwise);
};

// Turns n inputs of a row into blocks; n is a multiple of the group.
void quantize(const bfloat16* x, uint32_t n, Format format, Blocks out);
// y[r * kCodeColumns + c] = product of row r with matrix row col0 + c. rows: n_rows <= kCodeRows pointers.
// ahead: the matrix rows that the worker multiplies next, as far as one knows; they are fetched.
void multiply_codes(const Matrix& w, uint32_t col0, uint32_t n_cols, const bfloat16* const* rows,
                    uint32_t n_rows, const Matrix& ahead, CodeScratch& s, KeptBlocks& kept);

}  // namespace flashnext::cpu::FLASHNEXT_PATH
