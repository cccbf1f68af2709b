// How fast all threads together can read memory: the ceiling of decoding, which reads its weights once per token.
// Built and called by machine.py: cc -O3 -march=native -fopenmp -shared -fPIC

#include <omp.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t line_t __attribute__((vector_size(64)));

// Reads each thread's share of `data` once and returns the seconds it took.
//   lines   cache lines of 64 bytes in data
//   ahead   lines to prefetch ahead of the reads; 0 leaves that to the hardware
//   sink    takes a sum of what was read, so that no read can be left out
double read_seconds(const line_t *data, size_t lines, int threads, size_t ahead, uint64_t *sink) {
  uint64_t total = 0;
  double start = omp_get_wtime();
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    size_t share = lines / threads / 8 * 8;
    const line_t *p = data + share * omp_get_thread_num();
    line_t sums[8] = {{0}};  // eight chains, so that the adds never wait for one another
    for (size_t i = 0; i < share; i += 8) {
      for (int j = 0; j < 8; ++j) {
        if (ahead) __builtin_prefetch(p + i + j + ahead, 0, 0);
        sums[j] += p[i + j];
      }
    }
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 8; ++k) total += sums[j][k];
    }
  }
  double seconds = omp_get_wtime() - start;
  *sink += total;
  return seconds;
}
