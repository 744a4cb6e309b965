/* Runs NEON micro-kernels on operands of many sizes and compares them with double precision.
   Built by test_core_microkernels with a header, kernels.h, that lists KERNEL(name, mr, nv, packed,
   in_place): whether A is packed and whether B is in place. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LANES = 4, MAX_K = 40, MAX_ROWS = 16, MAX_COLUMNS = 6 * LANES, GAP = 3 };

#define KERNEL(name, mr, nv, packed, in_place)                                                   \
  extern void name(const float*, const float*, const float*, const float*, float*, int64_t,      \
                   int64_t, int64_t, int64_t, int64_t, int64_t, float);
#include "kernels.h"
#undef KERNEL

typedef void (*kernel_t)(const float*, const float*, const float*, const float*, float*, int64_t,
                         int64_t, int64_t, int64_t, int64_t, int64_t, float);

static float value(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

static int check(const char* name, kernel_t kernel, int mr, int nv, int packed,
                 int in_place, int k, float lo) {
  static float a[MAX_ROWS * (MAX_K + GAP) + 1], b[MAX_COLUMNS * MAX_K + 1];
  static float x[MAX_ROWS * (MAX_COLUMNS + GAP)], z[MAX_COLUMNS];
  static float c[MAX_ROWS * (MAX_COLUMNS + GAP) + 1];
  const int n = nv * LANES, lda = k + GAP, ldx = n + GAP, ldc = n + GAP;
  const int b_vector = in_place ? LANES : k * LANES, b_row = in_place ? n : LANES;
  for (size_t i = 0; i < sizeof a / sizeof *a; ++i) a[i] = value();
  for (size_t i = 0; i < sizeof b / sizeof *b; ++i) b[i] = value();
  for (size_t i = 0; i < sizeof x / sizeof *x; ++i) x[i] = value();
  for (size_t i = 0; i < sizeof z / sizeof *z; ++i) z[i] = value();
  for (size_t i = 0; i < sizeof c / sizeof *c; ++i) c[i] = -77.0f;
  /* every operand a float away from where it would be aligned */
  kernel(a + 1, b + 1, x, z, c + 1, lda, b_vector, b_row, ldx, ldc, k, lo);
  for (int i = 0; i < mr; ++i) {
    for (int j = 0; j < ldc; ++j) {
      double expected = -77.0;
      if (j < n) {
        expected = (double)x[i * ldx + j] + z[j];
        for (int p = 0; p < k; ++p) {
          const double left = a[1 + (packed ? p * mr + i : i * lda + p)];
          expected += left * b[1 + j / LANES * b_vector + p * b_row + j % LANES];
        }
        if (expected < lo) expected = lo;
      }
      if (!(fabs(c[1 + i * ldc + j] - expected) <= 1e-5)) {
        printf("%s: k=%d lo=%g: element %d,%d is %g instead of %g\n", name, k, lo, i, j,
               c[1 + i * ldc + j], expected);
        return 1;
      }
    }
  }
  return c[0] != -77.0f;
}

int main(void) {
  const int sizes[] = {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 40};
  int kernels = 0, wrong = 0;
#define KERNEL(name, mr, nv, packed, in_place)                                                   \
  ++kernels;                                                                                     \
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {                                    \
    wrong += check(#name, name, mr, nv, packed, in_place, sizes[i], -INFINITY);                  \
    wrong += check(#name, name, mr, nv, packed, in_place, sizes[i], 0.0f);                       \
  }
#include "kernels.h"
  printf("%d kernels, %d wrong\n", kernels, wrong);
  return wrong != 0;
}
