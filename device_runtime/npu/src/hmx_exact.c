/* The matrix unit with exact sums, rounded once: to FP16, or to FP32. Results depend on no order of summation, and are
 * those of quant/paths/exact.py. By public sources Hexagon's unit adds exactly too, in fixed point; no device has
 * confirmed it.
 *
 * Sums are made in FP64, where products are exact. For k products with Σ|a·w| <= size:
 * - below 32, every partial sum is a multiple of 2^-48 that FP64's 53 bits hold: the sum is exact;
 * - else it is off by less than k · 2^-52 · size, whatever the order (Higham, Accuracy and Stability of Numerical
 *   Algorithms, (3.5)). If both ends of an interval that holds it round to the same number, so does the exact sum. If not,
 *   which happens to few, it is added up in integers.
 * `size` is Σ|a| of the row times the largest |w| of the column. NaN and infinity go through FP64. */
#include "exact_sum.h"
#include "hmx.h"
#include "hvdc/half.h"
#include "portable.h"

#define TILE ((size_t)HVDC_HMX_TILE) /* of offsets, which are as wide as pointers */
#define HALFS HVDC_HMX_TILE_HALFS
#define K_STEP 4u                /* tiles of k that are widened at once */
#define EXACT_SIZE 31.0          /* below 32 by more than `size` itself is rounded */
#define FINITE_SIZE 0x1p1000     /* no sum of finite products is as large */
#define ERROR_OF_PRODUCT 0x1p-51 /* twice what is said above, for the roundings of the interval itself */

#if defined(__AVX512F__)
#define LANES 8u
#define ROWS 8u
#elif defined(__AVX__)
#define LANES 4u
#define ROWS 4u
#else
#define LANES 2u
#define ROWS 4u
#endif

typedef double lanes __attribute__((vector_size(8u * LANES)));

struct scratch {
    double sums[HVDC_HMX_ROW_TILES * HVDC_HMX_COL_TILES][TILE * TILE];
    double weights[HVDC_HMX_COL_TILES][K_STEP * TILE * TILE]; /* [k][32] */
    double rows[TILE * K_STEP * TILE];                        /* [32][K_STEP * 32] */
    double row_size[HVDC_HMX_ROW_TILES * TILE];               /* Σ|a| */
    double col_size[HVDC_HMX_COL_TILES * TILE];               /* largest |w| */
};

/* Operands of a call, for sums that are made again. */
struct operands {
    hvdc_hmx_matrix a, w;
    uint32_t k_tiles;
};

static inline lanes load(const double *from) {
    lanes value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline void store(double *to, lanes value) { __builtin_memcpy(to, &value, sizeof value); }

static inline double magnitude(double value) { return value < 0.0 ? -value : value; }

static const uint16_t *tile_of(hvdc_hmx_matrix matrix, uint32_t i, uint32_t k) {
    return matrix.tiles + ((size_t)i * matrix.stride + k) * HALFS;
}

/* Element (row, col) of a tile to rows[row * stride + col]. */
static void widen(const uint16_t *tile, double *restrict rows, size_t stride) {
    float values[HALFS];
    hvdc_halfs_to_floats(tile, HALFS, values);
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            rows[row * stride + col] = (double)values[HVDC_TILE_HMX_FP16_2_OFFSET(row, col)];
        }
    }
}

/* sums[r][c] += Σ_k rows[r][k] · panel[k][c] for ROWS rows; c < 32. */
static inline void add_rows(const double *restrict rows, size_t stride, const double *restrict panel, uint32_t k,
                            double *restrict sums) {
    for (uint32_t c = 0; c < TILE; c += 2u * LANES) {
        lanes left[ROWS], right[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) {
            left[r] = load(sums + r * TILE + c);
            right[r] = load(sums + r * TILE + c + LANES);
        }
        for (uint32_t i = 0; i < k; i++) {
            lanes first = load(panel + i * TILE + c), second = load(panel + i * TILE + c + LANES);
            for (uint32_t r = 0; r < ROWS; r++) {
                left[r] += first * rows[r * stride + i];
                right[r] += second * rows[r * stride + i];
            }
        }
        for (uint32_t r = 0; r < ROWS; r++) {
            store(sums + r * TILE + c, left[r]);
            store(sums + r * TILE + c + LANES, right[r]);
        }
    }
}

static void size_rows(const double *rows, uint32_t count, double *sizes) {
    for (uint32_t row = 0; row < TILE; row++) {
        double partial[8] = {0};
        for (uint32_t i = 0; i < count; i += 8u) {
            for (uint32_t j = 0; j < 8u; j++) {
                partial[j] += magnitude(rows[row * TILE * K_STEP + i + j]);
            }
        }
        for (uint32_t j = 0; j < 8u; j++) {
            sizes[row] += partial[j];
        }
    }
}

static void size_columns(const double *panel, uint32_t count, double *sizes) {
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t col = 0; col < TILE; col++) {
            double size = magnitude(panel[i * TILE + col]);
            sizes[col] = size > sizes[col] ? size : sizes[col];
        }
    }
}

static void zero(double *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        values[i] = 0.0;
    }
}

static void accumulate(const struct operands *of, uint32_t row_tiles, uint32_t col_tiles, struct scratch *s) {
    zero(s->sums[0], (size_t)row_tiles * col_tiles * TILE * TILE);
    zero(s->row_size, (size_t)row_tiles * TILE);
    zero(s->col_size, (size_t)col_tiles * TILE);
    for (uint32_t start = 0; start < of->k_tiles; start += K_STEP) {
        uint32_t count = of->k_tiles - start < K_STEP ? of->k_tiles - start : K_STEP;
        for (uint32_t c = 0; c < col_tiles; c++) {
            for (uint32_t k = 0; k < count; k++) {
                widen(tile_of(of->w, c, start + k), s->weights[c] + k * TILE * TILE, TILE);
            }
            size_columns(s->weights[c], count * TILE, s->col_size + c * TILE);
        }
        for (uint32_t r = 0; r < row_tiles; r++) {
            for (uint32_t k = 0; k < count; k++) {
                widen(tile_of(of->a, r, start + k), s->rows + k * TILE, K_STEP * TILE);
            }
            size_rows(s->rows, count * TILE, s->row_size + r * TILE);
            for (uint32_t c = 0; c < col_tiles; c++) {
                for (uint32_t row = 0; row < TILE; row += ROWS) {
                    add_rows(s->rows + row * TILE * K_STEP, TILE * K_STEP, s->weights[c], count * TILE,
                             s->sums[r * col_tiles + c] + row * TILE);
                }
            }
        }
    }
}

/* A sum in integers, in FP64 rounded to odd; what is not finite as it is. */
static double again(const struct operands *of, uint32_t row, uint32_t col, double sum) {
    if (!(magnitude(sum) < FINITE_SIZE)) {
        return sum;
    }
    exact_sum exact = {{0}};
    for (uint32_t k = 0; k < of->k_tiles; k++) {
        const uint16_t *a = tile_of(of->a, row / TILE, k), *w = tile_of(of->w, col / TILE, k);
        for (uint32_t i = 0; i < TILE; i++) {
            exact_add(&exact, a[HVDC_TILE_HMX_FP16_2_OFFSET((size_t)row % TILE, (size_t)i)],
                      w[HVDC_TILE_HMX_FP16_2_OFFSET(i, col % TILE)]);
        }
    }
    return exact_to_odd(&exact);
}

/* The ends of the intervals that hold a row's exact sums; whether they differ anywhere. */
static bool bound(const struct operands *of, const double *sums, double row_size, const double *col_size, double *low,
                  double *high) {
    const double error = (double)of->k_tiles * TILE * ERROR_OF_PRODUCT;
    double most = 0.0;
    for (uint32_t col = 0; col < TILE; col++) {
        double size = row_size * col_size[col];
        double off = size > EXACT_SIZE && size < FINITE_SIZE ? size * error : 0.0;
        low[col] = sums[col] - off;
        high[col] = sums[col] + off;
        most = off > most ? off : most;
    }
    return most > 0.0;
}

/* Row `row` and the 32 columns from `first` on to halfs. */
static void narrow_row(const struct operands *of, const struct scratch *s, const double *sums, uint32_t row,
                       uint32_t first, uint16_t halfs[TILE]) {
    double low[TILE], high[TILE];
    float floats[TILE];
    uint16_t others[TILE];
    bool differ = bound(of, sums, s->row_size[row], s->col_size + first, low, high);
    for (uint32_t col = 0; col < TILE; col++) {
        floats[col] = exact_odd_float(low[col]);
    }
    hvdc_halfs_from_floats(floats, TILE, halfs);
    if (!differ) {
        return;
    }
    for (uint32_t col = 0; col < TILE; col++) {
        floats[col] = exact_odd_float(high[col]);
    }
    hvdc_halfs_from_floats(floats, TILE, others);
    for (uint32_t col = 0; col < TILE; col++) {
        if (halfs[col] != others[col]) {
            halfs[col] = hvdc_half_from_float(exact_odd_float(again(of, row, first + col, sums[col])));
        }
    }
}

static void multiply(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                     uint16_t *out, size_t out_stride, void *scratch) {
    const struct operands of = {a, w, k_tiles};
    struct scratch *s = scratch;
    accumulate(&of, row_tiles, col_tiles, s);
    for (uint32_t row = 0; row < row_tiles * TILE; row++) {
        for (uint32_t c = 0; c < col_tiles; c++) {
            const double *from = s->sums[row / TILE * col_tiles + c] + row % TILE * TILE;
            uint16_t *to = out + (row / TILE * out_stride + c) * HALFS, halfs[TILE];
            narrow_row(&of, s, from, row, c * TILE, halfs);
            for (uint32_t col = 0; col < TILE; col++) {
                to[HVDC_TILE_HMX_FP16_2_OFFSET((size_t)row % TILE, (size_t)col)] = halfs[col];
            }
        }
    }
}

static void sums(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                 float *out, void *scratch) {
    const struct operands of = {a, w, k_tiles};
    struct scratch *s = scratch;
    double low[TILE], high[TILE];
    accumulate(&of, row_tiles, col_tiles, s);
    for (uint32_t row = 0; row < row_tiles * TILE; row++) {
        for (uint32_t c = 0; c < col_tiles; c++, out += TILE) {
            const double *from = s->sums[row / TILE * col_tiles + c] + row % TILE * TILE;
            (void)bound(&of, from, s->row_size[row], s->col_size + c * TILE, low, high);
            for (uint32_t col = 0; col < TILE; col++) {
                out[col] = (float)low[col];
                if (hvdc_bits_of_float(out[col]) != hvdc_bits_of_float((float)high[col])) {
                    out[col] = (float)again(&of, row, (uint32_t)(c * TILE + col), from[col]);
                }
            }
        }
    }
}

const hvdc_hmx HVDC_FOR_CPU(hvdc_hmx_exact) = {
    .col_tiles = 4,
    .query_tiles = 4,
    .scratch_bytes = sizeof(struct scratch),
    .multiply = multiply,
    .sums = sums,
};
