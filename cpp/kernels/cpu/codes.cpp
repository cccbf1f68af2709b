#include "kernels/cpu/codes.h"

#include "kernels/cpu/panel.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr int kLeastExponent = -110;  // 2^(15 - e) stays finite

// 2^n for n in -126 .. 127.
inline float power(int n) { return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23); }

// The exponent above a bfloat16 magnitude: |x| < 2^e. Only for finite values.
inline int exponent_above(uint32_t magnitude) {
  const int e = static_cast<int>(magnitude >> 7) - 126;
  return e > kLeastExponent ? e : kLeastExponent;
}

constexpr uint32_t kInfinity = 0x7f80;  // as a bfloat16 magnitude

#if defined(__AVX2__)

constexpr int kColumns = 8;  // columns that pass together, in register order 0 2 4 6 1 3 5 7

// Words of 32 codes of two matrix rows: vector m holds eight codes of each, the first row's in the lower
// half, code Unpack::code(m, w) in word w; quantize() puts the inputs in the same order.
struct Words {
  __m256i v[4];
};

inline __m256i load16(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}
inline __m256i load8(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a))),
                                 _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)), 1);
}

// 32 inputs, in both halves.
inline Words inputs(const int16_t* q) {
  const auto twice = [&](int i) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i)));
  };
  return {{twice(0), twice(8), twice(16), twice(24)}};
}

// The products of vectors 0 and 2, and of 1 and 3, with inputs, neighbours added.
inline __m256i even(const Words& w, const Words& x) {
  return _mm256_add_epi32(_mm256_madd_epi16(w.v[0], x.v[0]), _mm256_madd_epi16(w.v[2], x.v[2]));
}
inline __m256i odd(const Words& w, const Words& x) {
  return _mm256_add_epi32(_mm256_madd_epi16(w.v[1], x.v[1]), _mm256_madd_epi16(w.v[3], x.v[3]));
}

// For 2, 3, 5 and 6 bits. The 4 * kBits bytes of a group are read by two loads, the second ending with the
// group, so that nothing beyond it is touched. A code lies within two bytes, some bits up; neighbouring words
// hold codes that lie equally far up, so that a product may be brought down after neighbours are added.
template <int kBits>
struct Unpack {
  static constexpr int kWidth = kBits >= 4 ? 16 : 8;
  static constexpr int kSecond = 4 * kBits - kWidth;  // where the second load starts
  static constexpr int code(int m, int w) { return m / 2 * 16 + m % 2 * 4 + w / 2 + w % 2 * 8; }
  static constexpr int up(int m, int w) { return code(m, w) * kBits % 8; }

  static __m256i words16(short a, short b, short c, short d) {  // each for two words
    return _mm256_broadcastsi128_si256(_mm_setr_epi16(a, a, b, b, c, c, d, d));
  }
  template <int m>
  static __m256i spread(__m256i bytes) {
    const auto low = [](int w) { return static_cast<char>(code(m, w) * kBits / 8 - (m < 2 ? 0 : kSecond)); };
    const auto high = [&](int w) { return static_cast<char>(up(m, w) + kBits > 8 ? low(w) + 1 : -1); };
    return _mm256_shuffle_epi8(
        bytes, _mm256_broadcastsi128_si256(_mm_setr_epi8(low(0), high(0), low(1), high(1), low(2), high(2),
                                                         low(3), high(3), low(4), high(4), low(5), high(5),
                                                         low(6), high(6), low(7), high(7))));
  }
  // Codes where they lie in their words, multiplied by 2^up.
  template <int m>
  static __m256i raised(__m256i bytes) {
    const auto mask = [](int w) { return static_cast<short>(((1 << kBits) - 1) << up(m, w)); };
    return _mm256_and_si256(spread<m>(bytes), words16(mask(0), mask(2), mask(4), mask(6)));
  }
  template <int m>
  static __m256i lowered(__m256i bytes) {
    const auto raise = [](int w) { return static_cast<short>(1 << (16 - kBits - up(m, w))); };
    return _mm256_srli_epi16(
        _mm256_mullo_epi16(spread<m>(bytes), words16(raise(0), raise(2), raise(4), raise(6))), 16 - kBits);
  }
  static __m256i first(const uint8_t* a, const uint8_t* b) {
    return kWidth == 16 ? load16(a, b) : load8(a, b);
  }
  static Words for_dot(const uint8_t* a, const uint8_t* b) {
    const __m256i x = first(a, b), y = first(a + kSecond, b + kSecond);
    return {{raised<0>(x), raised<1>(x), raised<2>(y), raised<3>(y)}};
  }
  static Words words(const uint8_t* a, const uint8_t* b) {
    const __m256i x = first(a, b), y = first(a + kSecond, b + kSecond);
    return {{lowered<0>(x), lowered<1>(x), lowered<2>(y), lowered<3>(y)}};
  }
  static __m256i dot(const Words& w, const Words& x) {
    const auto ups = [](int m) {
      return _mm256_broadcastsi128_si256(_mm_setr_epi32(up(m, 0), up(m, 2), up(m, 4), up(m, 6)));
    };
    if constexpr (kBits % 2 == 0) return _mm256_srav_epi32(_mm256_add_epi32(even(w, x), odd(w, x)), ups(0));
    return _mm256_add_epi32(_mm256_srav_epi32(even(w, x), ups(0)), _mm256_srav_epi32(odd(w, x), ups(1)));
  }
};

template <>
struct Unpack<4> {
  static Words words(const uint8_t* a, const uint8_t* b) {
    const __m256i x = load16(a, b), low = _mm256_set1_epi16(15);
    return {{_mm256_and_si256(x, low), _mm256_and_si256(_mm256_srli_epi16(x, 4), low),
             _mm256_and_si256(_mm256_srli_epi16(x, 8), low), _mm256_srli_epi16(x, 12)}};
  }
  static Words for_dot(const uint8_t* a, const uint8_t* b) { return words(a, b); }
  static __m256i dot(const Words& w, const Words& x) { return _mm256_add_epi32(even(w, x), odd(w, x)); }
};

template <>
struct Unpack<8> {
  static Words words(const uint8_t* a, const uint8_t* b) {
    const __m256i zero = _mm256_setzero_si256(), x = load16(a, b), y = load16(a + 16, b + 16);
    return {{_mm256_unpacklo_epi8(x, zero), _mm256_unpackhi_epi8(x, zero), _mm256_unpacklo_epi8(y, zero),
             _mm256_unpackhi_epi8(y, zero)}};
  }
  static Words for_dot(const uint8_t* a, const uint8_t* b) { return words(a, b); }
  static __m256i dot(const Words& w, const Words& x) { return _mm256_add_epi32(even(w, x), odd(w, x)); }
};

// Eight matrix rows; those beyond n_cols repeat the last one and their results are dropped.
struct Columns {
  const uint8_t* codes[kColumns];
  const bfloat16 *scales[kColumns], *biases[kColumns];

  Columns(const Matrix& w, uint32_t col0, uint32_t n_cols) {
    for (uint32_t c = 0; c < kColumns; ++c) {
      const Matrix m = w.from_row(col0 + (c < n_cols ? c : n_cols - 1));
      codes[c] = m.codes;
      scales[c] = m.scales;
      biases[c] = m.biases;
    }
  }
};

inline void transpose8(__m256 r[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
  }
}

constexpr int kOrder[kColumns] = {0, 2, 4, 6, 1, 3, 5, 7};  // column in each register lane

inline __m256 widen(__m128i bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}

// out[g * 8 + lane] = parameter of group g0 + g of the lane's column for g < n <= 8; the rest of out[64] is
// undefined.
[[gnu::always_inline]] inline void gather(const bfloat16* const* columns, uint32_t g0, uint32_t n,
                                          float* out) {
  __m256 r[8];
  if (n == 8) {
    for (int lane = 0; lane < kColumns; ++lane) r[lane] = load(columns[kOrder[lane]] + g0).v;
  } else if (const uint32_t back = 8 - n; g0 >= back) {  // the last eight of the row, moved down
    alignas(32) static constexpr int8_t kDown[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                     11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1,
                                                     -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const __m128i down = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kDown + 2 * back));
    for (int lane = 0; lane < kColumns; ++lane) {
      const auto* p = reinterpret_cast<const __m128i*>(columns[kOrder[lane]] + g0 - back);
      r[lane] = widen(_mm_shuffle_epi8(_mm_loadu_si128(p), down));
    }
  } else {
    for (int lane = 0; lane < kColumns; ++lane) {
      bfloat16 some[8] = {};
      std::memcpy(some, columns[kOrder[lane]] + g0, n * sizeof *some);
      r[lane] = load(some).v;
    }
  }
  transpose8(r);
  for (int g = 0; g < 8; ++g) _mm256_store_ps(out + g * 8, r[g]);
}

inline void put_columns(__m256 acc, uint32_t n_cols, float* y) {
  float all[kColumns];
  _mm256_storeu_ps(all, _mm256_permutevar8x32_ps(acc, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  std::memcpy(y, all, (n_cols < kColumns ? n_cols : kColumns) * sizeof(float));
}

inline __m256 add_group(__m256i whole, float sum, float step, __m256 scale, __m256 bias, __m256 acc) {
  const __m256 part =
      _mm256_fmadd_ps(_mm256_set1_ps(sum), bias, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), scale));
  return _mm256_fmadd_ps(part, _mm256_set1_ps(step), acc);
}

// Products of 32 codes of eight columns with their inputs, four partial sums a column: whole[row][pair of
// columns].
template <int kBits, int kRows, bool kFirst>
[[gnu::always_inline]] inline void add_codes(const Columns& w, uint32_t k, const Blocks* x,
                                             __m256i whole[kRows][4]) {
  const size_t at = size_t{k} * kBits / 8;
  constexpr int kPairs = kRows > 1 ? 2 : 1;  // that share a row's inputs; more would not fit the registers
  for (int p = 0; p < 4; p += kPairs) {
    Words words[kPairs];
    for (int i = 0; i < kPairs; ++i) {
      words[i] = Unpack<kBits>::for_dot(w.codes[2 * (p + i)] + at, w.codes[2 * (p + i) + 1] + at);
    }
    for (int r = 0; r < kRows; ++r) {
      const Words in = inputs(x[r].q + k);
      for (int i = 0; i < kPairs; ++i) {
        const __m256i sum = Unpack<kBits>::dot(words[i], in);
        whole[r][p + i] = kFirst ? sum : _mm256_add_epi32(whole[r][p + i], sum);
      }
    }
  }
}

[[gnu::always_inline]] inline void prefetch(const void* p, size_t size_bytes) {
  for (size_t i = 0; i < size_bytes; i += 64) _mm_prefetch(static_cast<const char*>(p) + i, _MM_HINT_T0);
}

// Few rows with eight columns, codes unpacked on the way. Eight rows of codes are too many short streams for
// the processor to foresee, so the eight columns to come next are fetched piece by piece.
template <int kBits, int kRows>
[[gnu::noinline]] void dot_columns(const Columns& w, const Matrix& next, uint32_t n_in, uint32_t group,
                                   const Blocks* x, uint32_t n_cols, float* y) {
  const uint32_t n_groups = n_in / group;
  __m256 acc[kRows];
  for (int r = 0; r < kRows; ++r) acc[r] = _mm256_setzero_ps();
  alignas(32) float scales[64], biases[64];
  const uint8_t* fetch = next.codes;
  for (uint32_t g = 0; g < n_groups; ++g) {
    if (g % 8 == 0) {
      const uint32_t n = n_groups - g < 8 ? n_groups - g : 8;
      gather(w.scales, g, n, scales);
      gather(w.biases, g, n, biases);
      prefetch(next.scales + g * kColumns, 8 * kColumns * sizeof(bfloat16));
      prefetch(next.biases + g * kColumns, 8 * kColumns * sizeof(bfloat16));
    }
    for (uint32_t k = 0; k < group; k += 32, fetch += 32 * kBits) prefetch(fetch, 32 * kBits);
    __m256i whole[kRows][4];
    add_codes<kBits, kRows, true>(w, g * group, x, whole);
    for (uint32_t k = g * group + 32; k < (g + 1) * group; k += 32)
      add_codes<kBits, kRows, false>(w, k, x, whole);
    const __m256 scale = _mm256_load_ps(scales + g % 8 * 8), bias = _mm256_load_ps(biases + g % 8 * 8);
    for (int r = 0; r < kRows; ++r) {
      const __m256i sum = _mm256_hadd_epi32(_mm256_hadd_epi32(whole[r][0], whole[r][1]),
                                            _mm256_hadd_epi32(whole[r][2], whole[r][3]));
      acc[r] = add_group(sum, x[r].sum[g], x[r].step[g], scale, bias, acc[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) put_columns(acc[r], n_cols, y + r * kCodeColumns);
}

// Decodes n inputs of eight columns to pairs of words, out[pair][lane][2].
template <int kBits>
void decode_columns(const Columns& w, uint32_t k0, uint32_t n, int16_t* out) {
  auto* to = reinterpret_cast<__m256i*>(out);
  for (uint32_t k = k0; k < k0 + n; k += 32) {
    const size_t at = size_t{k} * kBits / 8;
    Words words[4];
    for (int p = 0; p < 4; ++p) words[p] = Unpack<kBits>::words(w.codes[2 * p] + at, w.codes[2 * p + 1] + at);
    for (int m = 0; m < 4; ++m) {
      const __m256i a = _mm256_unpacklo_epi32(words[0].v[m], words[1].v[m]),
                    b = _mm256_unpackhi_epi32(words[0].v[m], words[1].v[m]);
      const __m256i c = _mm256_unpacklo_epi32(words[2].v[m], words[3].v[m]),
                    d = _mm256_unpackhi_epi32(words[2].v[m], words[3].v[m]);
      _mm256_store_si256(to++, _mm256_unpacklo_epi64(a, c));
      _mm256_store_si256(to++, _mm256_unpackhi_epi64(a, c));
      _mm256_store_si256(to++, _mm256_unpacklo_epi64(b, d));
      _mm256_store_si256(to++, _mm256_unpackhi_epi64(b, d));
    }
  }
}

// Addresses in the cache lines that are needed next: short pieces of many matrix rows, which no processor
// foresees. They are fetched a few at a time; products would wait for many at once.
struct Lines {
  static constexpr uint32_t kBytes = 64, kMost = kDecodedColumns * (kCodeInputs / kBytes + 2);
  const void* at[kMost];
  uint32_t n = 0;

  void add(const void* p, size_t size_bytes) {
    for (size_t i = 0; i < size_bytes; i += kBytes) at[n++] = static_cast<const char*>(p) + i;
  }
};

// kRows rows with kVectors * 8 decoded columns: adds the groups of a panel to acc[r * kCodeColumns]. At each
// group n_lines of the lines are fetched.
template <int kRows, int kVectors>
[[gnu::noinline]] void multiply_tile(const int16_t* weights, const float* scales, const float* biases,
                                     const Blocks* x, uint32_t n_groups, uint32_t group,
                                     const void* const* lines, uint32_t n_lines, float* acc) {
  constexpr uint32_t kStride = kColumns * kCodeInputs;  // words from one vector of columns to the next
  constexpr uint32_t kParameters = kStride / kMinGroup;
  for (uint32_t g = 0; g < n_groups; ++g) {
    for (uint32_t i = 0; i < n_lines; ++i) _mm_prefetch(*lines++, _MM_HINT_T0);
    __m256i whole[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) whole[r][v] = _mm256_setzero_si256();
    }
    const int16_t* q[kRows];
    for (int r = 0; r < kRows; ++r) q[r] = x[r].q + g * group;
    const int16_t* w = weights + g * group * kColumns;
#pragma GCC unroll 8
    for (uint32_t k = 0; k < group; k += 2, w += 2 * kColumns) {
      __m256i columns[kVectors];
      for (int v = 0; v < kVectors; ++v)
        columns[v] = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + v * kStride));
      for (int r = 0; r < kRows; ++r) {
        int32_t pair;
        std::memcpy(&pair, q[r] + k, sizeof pair);
        const __m256i both = _mm256_set1_epi32(pair);
        for (int v = 0; v < kVectors; ++v) {
          // Written out, the sums stay in their registers and the rows in order: compilers would broadcast
          // all rows first, spill sums, or move each of them twice.
          asm volatile("vpaddd %1, %0, %0" : "+x"(whole[r][v]) : "x"(_mm256_madd_epi16(columns[v], both)));
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m256 scale = _mm256_load_ps(scales + v * kParameters + g * kColumns);
      const __m256 bias = _mm256_load_ps(biases + v * kParameters + g * kColumns);
      for (int r = 0; r < kRows; ++r) {
        float* y = acc + r * kCodeColumns + v * kColumns;
        _mm256_store_ps(y, add_group(whole[r][v], x[r].sum[g], x[r].step[g], scale, bias, _mm256_load_ps(y)));
      }
    }
  }
}

// Inputs of kDecodedColumns matrix rows that are decoded and multiplied together; small enough to stay in the
// first cache beside sixteen rows.
struct Panel {
  Matrix w;  // from the panel's first column
  uint32_t k0, n;

  // Lists where it is decoded from, if the matrix is stored like this.
  void list(Format like, Lines& lines) const {
    for (uint32_t c = 0; c < kDecodedColumns; ++c) {
      const Matrix m = w.from_row(c);
      lines.add(m.codes + size_t{k0} * like.bits / 8, size_t{n} * like.bits / 8);
      lines.add(m.scales + k0 / like.group, n / like.group * sizeof(bfloat16));
      lines.add(m.biases + k0 / like.group, n / like.group * sizeof(bfloat16));
    }
  }
};

template <int kBits>
void decode_panel(const Panel& p, uint32_t n_cols, CodeScratch& s) {
  const uint32_t g0 = p.k0 / p.w.format.group, n_groups = p.n / p.w.format.group;
  for (uint32_t c = 0; c < n_cols; c += kColumns) {
    const Columns columns(p.w, c, n_cols - c);
    decode_columns<kBits>(columns, p.k0, p.n, s.weights + size_t{c} * kCodeInputs);
    for (uint32_t g = 0; g < n_groups; g += 8) {
      const uint32_t at = c * kCodeInputs / kMinGroup + g * kColumns,
                     some = n_groups - g < 8 ? n_groups - g : 8;
      gather(columns.scales, g0 + g, some, s.scales + at);
      gather(columns.biases, g0 + g, some, s.biases + at);
    }
  }
}

// Adds the products of all rows with a decoded panel to y. The next panel is fetched on the way.
template <int kVectors>
void multiply_decoded(const Panel& p, const Panel& next, const Blocks* x, uint32_t n_rows, CodeScratch& s,
                      float* y) {
  const uint32_t group = p.w.format.group, n_groups = p.n / group;
  Lines lines;
  next.list(p.w.format, lines);
  const uint32_t n_steps = (n_rows / 4 + (n_rows % 4 + 1) / 2) * n_groups;
  const uint32_t at_once = (lines.n + n_steps - 1) / n_steps;
  for (uint32_t r = 0, at = 0; r < n_rows;) {
    const uint32_t left = n_rows - r, some = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const uint32_t rest = (lines.n - at) / n_groups, n_lines = at_once < rest ? at_once : rest;
    const auto tile = some == 4   ? multiply_tile<4, kVectors>
                      : some == 2 ? multiply_tile<2, kVectors>
                                  : multiply_tile<1, kVectors>;
    tile(s.weights, s.scales, s.biases, x + r, n_groups, group, lines.at + at, n_lines, y + r * kCodeColumns);
    at += n_lines * n_groups;
    r += some;
  }
}

template <int kBits>
void multiply(const Matrix& w, uint32_t col0, uint32_t n_cols, const bfloat16* const* rows, uint32_t n_rows,
              const Matrix& ahead, CodeScratch& s, KeptBlocks& kept) {
  const uint32_t group = w.format.group, n_groups = w.n_in / group;
  Blocks x[kCodeRows];
  if (n_rows <= kFewRows) {
    for (uint32_t r = 0; r < n_rows; ++r) {
      x[r] = kept.of(rows[r], w.n_in, w.format,
                     {s.q + size_t{r} * w.n_in, s.step + r * n_groups, s.sum + r * n_groups});
    }
    for (uint32_t c = 0; c < n_cols; c += kColumns) {
      const Columns columns(w, col0 + c, n_cols - c);
      const Matrix next = c + kColumns < n_cols ? w.from_row(col0 + c + kColumns) : ahead;
      switch (n_rows) {
        case 1: dot_columns<kBits, 1>(columns, next, w.n_in, group, x, n_cols - c, s.y + c); break;
        case 2: dot_columns<kBits, 2>(columns, next, w.n_in, group, x, n_cols - c, s.y + c); break;
        case 3: dot_columns<kBits, 3>(columns, next, w.n_in, group, x, n_cols - c, s.y + c); break;
        default: dot_columns<kBits, 4>(columns, next, w.n_in, group, x, n_cols - c, s.y + c);
      }
    }
    return;
  }
  std::memset(s.y, 0, size_t{n_rows} * kCodeColumns * sizeof(float));
  const auto panel_at = [&](uint32_t c, uint32_t k0) {
    const uint32_t left = w.n_in - k0;
    return Panel{c < n_cols ? w.from_row(col0 + c) : ahead, k0, left < kCodeInputs ? left : kCodeInputs};
  };
  const auto multiply_at = [&](uint32_t c, uint32_t k0, const Panel& next) {
    const Panel panel = panel_at(c, k0);
    decode_panel<kBits>(panel, n_cols - c < kDecodedColumns ? n_cols - c : kDecodedColumns, s);
    const auto multiply = n_cols - c > kColumns ? multiply_decoded<2> : multiply_decoded<1>;
    multiply(panel, next, x, n_rows, s, s.y + c);
  };
  if (size_t{n_rows} * w.n_in <= KeptBlocks::kInputs) {  // rows are turned once for all columns
    Blocks whole[kCodeRows];
    for (uint32_t r = 0; r < n_rows; ++r) {
      whole[r] = kept.of(rows[r], w.n_in, w.format,
                         {s.q + size_t{r} * w.n_in, s.step + r * n_groups, s.sum + r * n_groups});
    }
    for (uint32_t c = 0; c < n_cols; c += kDecodedColumns) {
      for (uint32_t k0 = 0; k0 < w.n_in; k0 += kCodeInputs) {
        for (uint32_t r = 0; r < n_rows; ++r)
          x[r] = {whole[r].q + k0, whole[r].step + k0 / group, whole[r].sum + k0 / group};
        const bool goes_on = w.n_in - k0 > kCodeInputs;
        multiply_at(c, k0, goes_on ? panel_at(c, k0 + kCodeInputs) : panel_at(c + kDecodedColumns, 0));
      }
    }
  } else {
    for (uint32_t k0 = 0; k0 < w.n_in; k0 += kCodeInputs) {
      const uint32_t n = panel_at(0, k0).n;
      for (uint32_t r = 0; r < n_rows; ++r) {
        x[r] = {s.q + size_t{r} * n, s.step + r * (n / group), s.sum + r * (n / group)};
        quantize(rows[r] + k0, n, w.format, x[r]);
      }
      for (uint32_t c = 0; c < n_cols; c += kDecodedColumns) {
        const bool last = n_cols - c <= kDecodedColumns, goes_on = w.n_in - k0 > kCodeInputs;
        multiply_at(c, k0,
                    !last     ? panel_at(c + kDecodedColumns, k0)
                    : goes_on ? panel_at(0, k0 + kCodeInputs)
                              : panel_at(n_cols, 0));
      }
    }
  }
  for (uint32_t r = 0; r < n_rows; ++r) {  // lanes back to columns
    for (uint32_t c = 0; c < n_cols; c += kColumns) {
      float* y = s.y + r * kCodeColumns + c;
      put_columns(_mm256_load_ps(y), kColumns, y);
    }
  }
}

// Of n values the largest magnitude as bfloat16 bits.
inline uint32_t largest(const bfloat16* x, uint32_t n) {
  __m256i m = _mm256_setzero_si256();
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  for (uint32_t i = 0; i < n; i += 16) {
    m = _mm256_max_epu16(
        m, _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), magnitude));
  }
  // minpos finds a smallest value: of the complement.
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  return 0xffff ^ static_cast<uint32_t>(
                      _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1))), 0));
}

inline __m128i eight_words(const bfloat16* x, __m256 factor) {
  const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(load(x).v, factor));
  return _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
}

#else

void unpack(const uint8_t* p, uint32_t bits, int16_t* out) {
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t bit = i * bits, byte = bit / 8;
    uint32_t word = p[byte];
    if (bit % 8 + bits > 8) word |= uint32_t{p[byte + 1]} << 8;
    out[i] = static_cast<int16_t>((word >> (bit % 8)) & ((1u << bits) - 1));
  }
}

uint32_t largest(const bfloat16* x, uint32_t n) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < n; ++i) m = (x[i].bits & 0x7fffu) > m ? x[i].bits & 0x7fffu : m;
  return m;
}

#endif

}  // namespace

void quantize(const bfloat16* x, uint32_t n, Format format, Blocks out) {
  for (uint32_t g = 0; g < n / format.group; ++g, x += format.group, out.q += format.group) {
    const uint32_t most = largest(x, format.group);
    if (most >= kInfinity) {
      std::memset(out.q, 0, format.group * sizeof *out.q);
      out.sum[g] = 0;
      out.step[g] = __builtin_nanf("");
      continue;
    }
    const int e = exponent_above(most);
    out.step[g] = power(e - 15);
#if defined(__AVX2__)
    const __m256 factor = _mm256_set1_ps(power(15 - e));
    __m128i total = _mm_setzero_si128();
    for (uint32_t i = 0; i < format.group; i += 32) {
      __m128i v[4];
      for (int j = 0; j < 4; ++j) {
        v[j] = eight_words(x + i + 8 * j, factor);
        total = _mm_add_epi32(total, _mm_madd_epi16(v[j], _mm_set1_epi16(1)));
      }
      if (format.bits == 4) {  // word w of vector m = input 4w + m
        const __m128i pick = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
        for (__m128i& a : v) a = _mm_shuffle_epi8(a, pick);  // per four inputs apart: (0 4)(1 5)(2 6)(3 7)
        const __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpackhi_epi32(v[0], v[1]);
        const __m128i c = _mm_unpacklo_epi32(v[2], v[3]), d = _mm_unpackhi_epi32(v[2], v[3]);
        v[0] = _mm_unpacklo_epi64(a, c);
        v[1] = _mm_unpackhi_epi64(a, c);
        v[2] = _mm_unpacklo_epi64(b, d);
        v[3] = _mm_unpackhi_epi64(b, d);
      } else if (format.bits != 8) {  // word 2i + j of vector m = input 16 * (m / 2) + 4 * (m % 2) + 8j + i
        const __m128i a = v[0], b = v[2];
        v[0] = _mm_unpacklo_epi16(a, v[1]);
        v[1] = _mm_unpackhi_epi16(a, v[1]);
        v[2] = _mm_unpacklo_epi16(b, v[3]);
        v[3] = _mm_unpackhi_epi16(b, v[3]);
      }
      for (int j = 0; j < 4; ++j) _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + i + 8 * j), v[j]);
    }
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4e));
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0xb1));
    out.sum[g] = static_cast<float>(_mm_cvtsi128_si32(total));
#else
    const float factor = power(15 - e);
    int32_t total = 0;
    for (uint32_t i = 0; i < format.group; ++i) {
      // Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number, ties to even.
      out.q[i] = static_cast<int16_t>((to_float(x[i]) * factor + 12582912.0f) - 12582912.0f);
      total += out.q[i];
    }
    out.sum[g] = static_cast<float>(total);
#endif
  }
}

Blocks KeptBlocks::of(const bfloat16* x, uint32_t n, Format format, Blocks otherwise) {
  for (uint32_t i = 0; i < n_rows; ++i) {
    const Row& row = rows[i];
    if (row.x == x && row.n == n && row.format.bits == format.bits && row.format.group == format.group)
      return row.blocks;
  }
  if (n_rows == kRows || n > kInputs - n_inputs) {
    quantize(x, n, format, otherwise);
    return otherwise;
  }
  const Blocks blocks = {q + n_inputs, step + n_groups, sum + n_groups};
  quantize(x, n, format, blocks);
  rows[n_rows++] = {x, n, format, blocks};
  n_inputs += n;
  n_groups += n / format.group;
  return blocks;
}

void multiply_codes(const Matrix& w, uint32_t col0, uint32_t n_cols, const bfloat16* const* rows,
                    uint32_t n_rows, [[maybe_unused]] const Matrix& ahead, CodeScratch& s,
                    [[maybe_unused]] KeptBlocks& kept) {
#if defined(__AVX2__)
  switch (w.format.bits) {
    case 2: return multiply<2>(w, col0, n_cols, rows, n_rows, ahead, s, kept);
    case 3: return multiply<3>(w, col0, n_cols, rows, n_rows, ahead, s, kept);
    case 4: return multiply<4>(w, col0, n_cols, rows, n_rows, ahead, s, kept);
    case 5: return multiply<5>(w, col0, n_cols, rows, n_rows, ahead, s, kept);
    case 6: return multiply<6>(w, col0, n_cols, rows, n_rows, ahead, s, kept);
    default: return multiply<8>(w, col0, n_cols, rows, n_rows, ahead, s, kept);
  }
#else
  const uint32_t group = w.format.group;
  std::memset(s.y, 0, size_t{n_rows} * kCodeColumns * sizeof(float));
  for (uint32_t k0 = 0; k0 < w.n_in; k0 += kCodeInputs) {
    const uint32_t n = w.n_in - k0 < kCodeInputs ? w.n_in - k0 : kCodeInputs, groups = n / group;
    for (uint32_t r = 0; r < n_rows; ++r) {
      quantize(rows[r] + k0, n, w.format, {s.q + size_t{r} * n, s.step + r * groups, s.sum + r * groups});
    }
    for (uint32_t c = 0; c < n_cols; ++c) {
      const Matrix m = w.from_row(col0 + c);
      for (uint32_t k = 0; k < n; k += 32)
        unpack(m.codes + size_t{k0 + k} * w.format.bits / 8, w.format.bits, s.weights + k);
      for (uint32_t g = 0; g < groups; ++g) {
        const float scale = to_float(m.scales[k0 / group + g]), bias = to_float(m.biases[k0 / group + g]);
        for (uint32_t r = 0; r < n_rows; ++r) {
          const int16_t *q = s.q + size_t{r} * n + g * group, *code = s.weights + g * group;
          int32_t whole = 0;
          for (uint32_t i = 0; i < group; ++i) whole += int32_t{code[i]} * q[i];
          float& y = s.y[r * kCodeColumns + c];
          y = scalar_fma(scalar_fma(s.sum[r * groups + g], bias, static_cast<float>(whole) * scale),
                         s.step[r * groups + g], y);
        }
      }
    }
  }
#endif
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
