/* Which dot form and which shape: what compiles, gives the right values, and is the fastest of a few. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache.h"
#include "gemm.h"
#include "program.h"

#define BATCHES 2u

static const enum hvdc_gpu_dot FORMS[] = {HVDC_GPU_DOT_KHR, HVDC_GPU_DOT_QCOM, HVDC_GPU_DOT_NVIDIA, HVDC_GPU_DOT_PLAIN};

/* Some front ends know an extension's functions in one version of the language alone, and not the one they call newest. */
static const char *const STANDARDS[] = {"", "-cl-std=CL3.0", "-cl-std=CL1.2"};

static const hvdc_gemm_shape GPU_SHAPES[] = {
    {4, 1, 8, false, 8, 8},   {4, 1, 8, false, 8, 4},  {1, 1, 8, false, 32, 2},
    {1, 1, 16, false, 32, 4}, {4, 2, 8, false, 4, 16}, {4, 1, 4, false, 8, 16},
};
static const hvdc_gemm_shape CPU_SHAPES[] = {
    {16, 2, 12, true, 1, 1}, {16, 2, 8, true, 1, 1}, {16, 1, 4, true, 1, 1}, {4, 1, 4, false, 1, 1}};
static const hvdc_gemm_shape CPU_SHAPE_OF_INSTRUCTIONS = {4, 1, 4, false, 8, 1};

static const char PREFIX[] = "gemm";

/* Numbers for tests, not for secrets: a linear congruence of D. E. Knuth's MMIX. */
static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

typedef struct trial {
    hvdc_product product;
    hvdc_buffer a, b, out;
    int8_t *x, *w; /* [batch][row][k], [batch][n_tile][k_tile][1024] */
    int32_t *sums;
} trial;

static void trial_end(hvdc_device *d, trial *t) {
    hvdc_device_free(d, &t->a);
    hvdc_device_free(d, &t->b);
    hvdc_device_free(d, &t->out);
    free(t->x);
    free(t->w);
    free(t->sums);
    memset(t, 0, sizeof *t);
}

/* Random operands, with a row and a column of the largest magnitude. */
static bool trial_begin(hvdc_device *d, uint32_t rows, uint32_t k, uint32_t columns, trial *t, hvdc_failure *failure) {
    memset(t, 0, sizeof *t);
    const size_t x_bytes = (size_t)BATCHES * (rows + HVDC_GEMM_SLACK_ROWS) * k, w_bytes = (size_t)BATCHES * columns * k;
    const size_t out_bytes = (size_t)BATCHES * rows * columns * sizeof(int32_t);
    t->x = calloc(x_bytes, 1);
    t->w = malloc(w_bytes);
    t->sums = malloc(out_bytes);
    if (t->x == NULL || t->w == NULL || t->sums == NULL) {
        trial_end(d, t);
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory while the GPU is tried");
    }
    uint64_t state = 1;
    for (size_t i = 0; i < x_bytes; ++i) {
        t->x[i] = (int8_t)(i < k ? -127 : (int)(next(&state) % 255u) - 127);
    }
    for (size_t i = 0; i < w_bytes; ++i) {
        t->w[i] = (int8_t)(i % 128 < 4 ? -127 : (int)(next(&state) % 255u) - 127);
    }
    if (!hvdc_device_allocate(d, "a trial", x_bytes, false, &t->a, failure) ||
        !hvdc_device_allocate(d, "a trial", w_bytes, false, &t->b, failure) ||
        !hvdc_device_allocate(d, "a trial", out_bytes, true, &t->out, failure) ||
        !hvdc_device_write(d, t->a.memory, 0, t->x, x_bytes, failure) ||
        !hvdc_device_write(d, t->b.memory, 0, t->w, w_bytes, failure)) {
        trial_end(d, t);
        return false;
    }
    t->product = (hvdc_product){.a = t->a.memory,
                                .a_row = k / 4,
                                .a_batch = rows * k / 4,
                                .b = t->b.memory,
                                .b_batch = columns * k / 4,
                                .words = k / 4,
                                .rows = rows,
                                .columns = columns,
                                .batches = BATCHES};
    return true;
}

static bool run(hvdc_device *d, hvdc_gemm *g, trial *t, hvdc_failure *failure) {
    const hvdc_product *p = &t->product;
    return hvdc_gemm_sums(d, g, p, t->out.memory, p->columns, p->rows * p->columns, failure) &&
           hvdc_device_finish(d, failure);
}

/* Every sum of a small product against C's. */
static bool right_values(hvdc_device *d, hvdc_gemm *g, hvdc_failure *failure) {
    const uint32_t rows = 21, k = 96, columns = 64; /* rows of no shape's multiple */
    trial t;
    if (!trial_begin(d, rows, k, columns, &t, failure)) {
        return false;
    }
    hvdc_gemm_need(g, rows, k / 4, columns, BATCHES);
    bool good = hvdc_gemm_allocate(d, g, failure) && run(d, g, &t, failure) &&
                hvdc_device_read(d, t.out.memory, 0, t.sums, t.out.bytes, failure);
    for (uint32_t i = 0; good && i < BATCHES * rows * columns; ++i) {
        const uint32_t batch = i / columns / rows, row = i / columns % rows, n = i % columns;
        const int8_t *x = t.x + ((size_t)batch * rows + row) * k;
        const int8_t *w = t.w + (size_t)batch * columns * k;
        int32_t sum = 0;
        for (uint32_t c = 0; c < k; ++c) {
            const uint32_t tile =
                n / HVDC_TILE_HMX_INT8_K4_COLS * (k / HVDC_TILE_HMX_INT8_K4_ROWS) + c / HVDC_TILE_HMX_INT8_K4_ROWS;
            sum +=
                x[c] * w[tile * HVDC_TILE_HMX_INT8_K4_BYTES +
                         HVDC_TILE_HMX_INT8_K4_OFFSET(c % HVDC_TILE_HMX_INT8_K4_ROWS, n % HVDC_TILE_HMX_INT8_K4_COLS)];
        }
        if (sum != t.sums[i]) {
            good = hvdc_fail(
                failure, HVDC_FAILURE_DEVICE,
                "%s multiplies wrongly in the form '%s': row %u, column %u is %d instead of %d; another driver "
                "may be right, or run on the NPU alone",
                d->name, g->options, (unsigned)row, (unsigned)n, (int)t.sums[i], (int)sum);
        }
    }
    trial_end(d, &t);
    return good;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The faster of two runs after one that compiles; a huge number if it cannot run. */
static double seconds(hvdc_device *d, hvdc_gemm *g) {
    const uint32_t rows = d->is_cpu ? 96 : 512, k = d->is_cpu ? 768 : 1024, columns = d->is_cpu ? 256 : 1024;
    double best = 1e9;
    trial t;
    if (!trial_begin(d, rows, k, columns, &t, NULL)) {
        return best;
    }
    hvdc_device_free(d, &g->packed);
    hvdc_device_free(d, &g->row_sums);
    hvdc_device_free(d, &g->column_sums);
    hvdc_gemm_need(g, rows, k / 4, columns, BATCHES);
    if (hvdc_gemm_allocate(d, g, NULL) && run(d, g, &t, NULL)) {
        for (int i = 0; i < 2; ++i) {
            const double start = now_s();
            if (run(d, g, &t, NULL)) {
                const double spent = now_s() - start;
                best = spent < best ? spent : best;
            }
        }
    }
    trial_end(d, &t);
    return best;
}

/* A GEMM without the memory of trials. */
static void forget_trials(hvdc_device *d, hvdc_gemm *g) {
    hvdc_device_free(d, &g->packed);
    hvdc_device_free(d, &g->row_sums);
    hvdc_device_free(d, &g->column_sums);
    g->packed_bytes = g->row_sum_bytes = g->column_sum_bytes = 0;
}

static bool fits_device(hvdc_device *d, const hvdc_gemm *g) {
    size_t allowed = 0;
    const size_t group = (size_t)g->shape.group_columns * g->shape.group_rows;
    return d->cl.clGetKernelWorkGroupInfo(g->linear, d->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof allowed, &allowed,
                                          NULL) == CL_SUCCESS &&
           group <= allowed;
}

static bool try_one(hvdc_device *d, enum hvdc_gpu_dot dot, bool emulate, const hvdc_gemm_shape *shape,
                    const char *standard, hvdc_gemm *g, hvdc_failure *failure) {
    if (!hvdc_gemm_build(d, dot, emulate, shape, standard, g, failure)) {
        return false;
    }
    if (!fits_device(d, g)) {
        hvdc_gemm_release(d, g);
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "%s allows no group of %u x %u work-items for the GEMM", d->name,
                         (unsigned)shape->group_columns, (unsigned)shape->group_rows);
    }
    if (!right_values(d, g, failure)) {
        hvdc_gemm_release(d, g);
        return false;
    }
    return true;
}

static void shapes_for(const hvdc_device *d, enum hvdc_gpu_dot dot, uint32_t only, const hvdc_gemm_shape **shapes,
                       uint32_t *count) {
    if (!d->is_cpu) {
        *shapes = GPU_SHAPES;
        *count = sizeof GPU_SHAPES / sizeof GPU_SHAPES[0];
    } else if (dot == HVDC_GPU_DOT_PLAIN) {
        *shapes = CPU_SHAPES;
        *count = sizeof CPU_SHAPES / sizeof CPU_SHAPES[0];
    } else {
        *shapes = &CPU_SHAPE_OF_INSTRUCTIONS;
        *count = 1;
    }
    if (only > 0) {
        *shapes += only <= *count ? only - 1 : 0;
        *count = 1;
    }
}

/* The fastest shape of a form. */
static bool tune(hvdc_device *d, enum hvdc_gpu_dot dot, const hvdc_gpu_options *options, const char *standard,
                 hvdc_gemm *best, uint32_t *choice, hvdc_failure *failure) {
    const hvdc_gemm_shape *shapes;
    uint32_t count;
    double best_s = 0;
    bool found = false;
    shapes_for(d, dot, options->gemm_shape, &shapes, &count);
    for (uint32_t i = 0; i < count; ++i) {
        hvdc_gemm g;
        if (!try_one(d, dot, options->emulate_dot, &shapes[i], standard, &g, failure)) {
            if (i == 0 && !shapes[i].pairs) {
                return false; /* the form itself is not there, or wrong: no other shape mends that */
            }
            continue;
        }
        const double spent = count == 1 ? 0 : seconds(d, &g);
        if (!found || spent < best_s) {
            if (found) {
                hvdc_gemm_release(d, best);
            }
            *best = g;
            best_s = spent;
            *choice = i;
            found = true;
        } else {
            hvdc_gemm_release(d, &g);
        }
    }
    return found;
}

/* A choice kept from an earlier start, which must still compile and be right. */
static bool remembered(hvdc_device *d, const char *key, const hvdc_gpu_options *options, hvdc_gemm *g) {
    size_t bytes = 0;
    uint8_t *kept = hvdc_cache_read(d->cache_directory, PREFIX, key, &bytes);
    const hvdc_gemm_shape *shapes;
    uint32_t count;
    bool good = false;
    if (kept != NULL && bytes == 3 && kept[0] >= HVDC_GPU_DOT_KHR && kept[0] <= HVDC_GPU_DOT_PLAIN &&
        kept[1] < sizeof STANDARDS / sizeof STANDARDS[0]) {
        shapes_for(d, (enum hvdc_gpu_dot)kept[0], options->gemm_shape, &shapes, &count);
        good = kept[2] < count && try_one(d, (enum hvdc_gpu_dot)kept[0], options->emulate_dot, &shapes[kept[2]],
                                          STANDARDS[kept[1]], g, NULL);
    }
    free(kept);
    return good;
}

bool hvdc_gemm_open(hvdc_device *d, const hvdc_gpu_options *options, hvdc_gemm *g, hvdc_failure *failure) {
    char key[HVDC_CACHE_KEY_BYTES], wanted[32];
    (void)snprintf(wanted, sizeof wanted, "%d %d %d %u", (int)options->dot, (int)options->emulate_dot, (int)d->is_cpu,
                   (unsigned)options->gemm_shape);
    const char *texts[] = {
        hvdc_source_common_cl, hvdc_source_dot_cl, hvdc_source_gemm_cl, d->platform_name, d->name, d->driver, wanted};
    hvdc_cache_key(texts, sizeof texts / sizeof texts[0], key);
    if (remembered(d, key, options, g)) {
        hvdc_gemm_keep(d, g); /* again, where its program was damaged */
        forget_trials(d, g);
        return true;
    }
    for (size_t f = 0; f < sizeof FORMS / sizeof FORMS[0]; ++f) {
        if (options->dot != HVDC_GPU_DOT_ANY && options->dot != FORMS[f]) {
            continue;
        }
        for (size_t s = 0; s < sizeof STANDARDS / sizeof STANDARDS[0]; ++s) {
            uint32_t choice = 0;
            if (tune(d, FORMS[f], options, STANDARDS[s], g, &choice, failure)) {
                const uint8_t kept[] = {(uint8_t)FORMS[f], (uint8_t)s, (uint8_t)choice};
                hvdc_cache_write(d->cache_directory, PREFIX, key, kept, sizeof kept);
                hvdc_gemm_keep(d, g);
                forget_trials(d, g);
                return true;
            }
        }
    }
    return false; /* with the sentence of the last attempt */
}
