/* hvdc_kernels: computes single kernels of host and NPU executor for a test, which knows what is due.
 *
 *   hvdc_kernels CPU THREADS [SUMS [VTCM_KIB]]     a level of hvdc/cpu.h, the number of threads, fast or exact; with a
 *                                                  size of VTCM, the matrix unit is a DSP's (hmx_staged.h), as a model
 *
 * Each line of standard input is a question, `NAME SIZES…`, followed by its arrays without a gap; the answer is a
 * line with a number of bytes, and the bytes. h is FP16, f FP32, b INT8; weights are tiled as in an artifact, w for
 * "tiles b, scales f":
 *
 *   narrow N             f[N] -> h[N]
 *   widen N              h[N] -> f[N]
 *   exp2 N, gelu N       f[N] -> f[N]
 *   weight N K           w[N][K] -> FP16 tiles
 *   linear M N K RANK    h[M][K], w[N][K], bias f, and with a rank w[RANK][K], w[N][RANK] -> h[M][N]
 *   up M N K             h[M][K], w[N][K], bias f -> FP16 tiles of GELU
 *   multiply M N K       h[M][K], h[N][K] -> FP16 tiles of the products of rows; M <= 1024, N <= 256
 *   sums M N K           the same -> f[M padded][N padded]
 *   attention M L HEADS DIM        h[M][HEADS·DIM], keys and values h[L][HEADS·DIM] -> h[M][HEADS·DIM]
 *   layer_norm M N HAVE  f[M][N], and if HAVE factor f[N], addend f[N] -> h[M][N]
 *   rms_norm M N HEADS HAVE        h[M][N], gain f[N], and if HAVE rotations f[M][N/HEADS] -> h[M][N]
 *   residual N HAVE      f[N], h[N], and if HAVE gate f[N] -> f[N]
 *   panel M N K          f[M][K], f[K][32], bias f[N] -> f[M][N], N <= 32
 *   pool TOTAL GRAIN     -> b[TOTAL]: how often each index was worked on
 *
 * Exit status: 0 at the end of the input, 1 for a fault, 2 for another question. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/half.h"
#include "hvdc/rows.h"
#include "hmx_staged.h"
#include "multiply.h"
#include "npu_internal.h"
#include "vtcm.h"

#define MAX_ARRAYS 16

static struct {
    hvdc_npu_options options;
    enum hvdc_cpu cpu;
    const hvdc_hmx *staged;   /* or NULL */
    void *arrays[MAX_ARRAYS]; /* of the question at hand */
    int count;
} state;

static void fault(const char *why) {
    (void)fprintf(stderr, "hvdc_kernels: %s\n", why);
    exit(1);
}

/* Memory of exactly this size, so that AddressSanitizer sees every step beyond it; freed after the answer. */
static void *room(size_t bytes) {
    void *made = malloc(bytes == 0u ? 1u : bytes);
    if (made == NULL || state.count == MAX_ARRAYS) {
        fault("no memory for an array");
    }
    state.arrays[state.count++] = made;
    return made;
}

static void *take(size_t count, size_t size) {
    void *array = room(count * size);
    if (fread(array, size, count, stdin) != count) {
        fault("an array is cut short");
    }
    return array;
}

static void answer(const void *data, size_t bytes) {
    (void)printf("%zu\n", bytes);
    (void)fwrite(data, 1, bytes, stdout);
    (void)fflush(stdout);
}

static hvdc_weight take_weight(uint32_t n, uint32_t k) {
    hvdc_weight w = {.n = n, .k = k, .n_tiles = npu_tiles(n), .k_tiles = npu_tiles(k)};
    w.tiles = take((size_t)w.n_tiles * w.k_tiles, HVDC_TILE_HMX_INT8_K4_BYTES);
    w.scale = take((size_t)w.n_tiles * TILE, sizeof *w.scale);
    return w;
}

static void prepare(npu_engine *npu, const hvdc_geometry *geometry, uint32_t tokens) {
    hvdc_failure failure;
    *npu = (npu_engine){.geometry = *geometry, .grid = {1, 1, tokens}};
    if (!npu_prepare(npu, &state.options, &failure)) {
        fault(failure.message);
    }
}

static void halfs(const uint32_t *sizes) {
    const float *x = take(sizes[0], sizeof *x);
    uint16_t *y = room(sizes[0] * sizeof *y);
    hvdc_hvx_for(state.cpu)->narrow(x, sizes[0], y);
    answer(y, sizes[0] * sizeof *y);
}

static void floats(const uint32_t *sizes) {
    const uint16_t *x = take(sizes[0], sizeof *x);
    float *y = room(sizes[0] * sizeof *y);
    hvdc_halfs_to_floats(x, sizes[0], y);
    answer(y, sizes[0] * sizeof *y);
}

static void exp2s(const uint32_t *sizes) {
    float *x = take(sizes[0], sizeof *x);
    hvdc_hvx_for(state.cpu)->exp2(x, sizes[0]);
    answer(x, sizes[0] * sizeof *x);
}

static void gelus(const uint32_t *sizes) {
    float *x = take(sizes[0], sizeof *x);
    hvdc_hvx_for(state.cpu)->gelu(x, sizes[0]);
    answer(x, sizes[0] * sizeof *x);
}

static void weight(const uint32_t *sizes) {
    hvdc_weight w = take_weight(sizes[0], sizes[1]);
    size_t bytes = (size_t)w.n_tiles * w.k_tiles * HVDC_TILE_HMX_FP16_2_BYTES;
    uint16_t *tiles = room(bytes);
    npu_engine npu;
    prepare(&npu, &(hvdc_geometry){.width = 32, .ffn_width = 32, .heads = 1}, 1);
    npu_widen(&npu, &w, 0, tiles);
    answer(tiles, bytes);
    npu_release(&npu);
}

static void linear(const uint32_t *sizes) {
    uint32_t m = sizes[0], n = sizes[1], k = sizes[2], rank = sizes[3];
    const uint16_t *x = take((size_t)m * k, sizeof *x);
    npu_linear bound = {.base = take_weight(n, k)};
    bound.bias = take((size_t)npu_tiles(n) * TILE, sizeof *bound.bias);
    if (rank > 0u) {
        bound.a = take_weight(rank, k);
        bound.b = take_weight(n, rank);
    }
    uint16_t *y = room((size_t)m * n * sizeof *y);
    npu_engine npu;
    prepare(&npu, &(hvdc_geometry){.width = k, .ffn_width = n, .heads = 1, .rank = rank}, m);
    npu_pack(&npu, x, m, NULL, NULL, NPU_INPUT, NULL);
    npu_apply(&npu, &bound, HVDC_EXPERT_DETAIL, m, y);
    answer(y, (size_t)m * n * sizeof *y);
    npu_release(&npu);
}

static void up(const uint32_t *sizes) {
    uint32_t m = sizes[0], n = sizes[1], k = sizes[2];
    const uint16_t *x = take((size_t)m * k, sizeof *x);
    hvdc_weight w = take_weight(n, k);
    const float *bias = take((size_t)w.n_tiles * TILE, sizeof *bias);
    size_t bytes = (size_t)npu_tiles(m) * w.n_tiles * HVDC_TILE_HMX_FP16_2_BYTES;
    uint16_t *out = room(bytes), *widened = room((size_t)w.n_tiles * w.k_tiles * HVDC_TILE_HMX_FP16_2_BYTES);
    npu_engine npu;
    prepare(&npu, &(hvdc_geometry){.width = k, .ffn_width = n, .heads = 1}, m);
    npu_pack(&npu, x, m, NULL, NULL, NPU_INPUT, NULL);
    npu_widen(&npu, &w, 0, widened);
    npu_multiply(&npu, &(npu_gemm){.input = npu.input,
                                   .rows = m,
                                   .weight = &w,
                                   .widened = widened,
                                   .result = NPU_GELU,
                                   .bias = bias,
                                   .out = out});
    answer(out, bytes);
    npu_release(&npu);
}

/* Products of the matrix unit itself: `narrowed`, or its sums. */
static void product(const uint32_t *sizes, bool narrowed) {
    uint32_t m = sizes[0], n = sizes[1], k = sizes[2];
    uint32_t row_tiles = npu_tiles(m), col_tiles = npu_tiles(n), k_tiles = npu_tiles(k);
    if (row_tiles > HVDC_HMX_ROW_TILES || col_tiles > HVDC_HMX_COL_TILES) {
        fault("more tiles than a call takes");
    }
    const hvdc_hmx *hmx = state.options.unit == NULL ? hvdc_hmx_for(state.cpu, state.options.sums) : state.options.unit;
    const hvdc_hvx *hvx = hvdc_hvx_for(state.cpu);
    const uint16_t *x = take((size_t)m * k, sizeof *x), *w = take((size_t)n * k, sizeof *w);
    uint16_t *a = room((size_t)row_tiles * k_tiles * HVDC_TILE_HMX_FP16_2_BYTES);
    uint16_t *b = room((size_t)col_tiles * k_tiles * HVDC_TILE_HMX_FP16_2_BYTES);
    for (uint32_t row = 0; row < m; row += TILE) {
        hvx->pack_rows(x + (size_t)row * k, k, m - row < TILE ? m - row : TILE, k, a + (size_t)row * k_tiles * TILE, 1);
    }
    for (uint32_t row = 0; row < n; row += TILE) {
        hvx->pack_columns(w + (size_t)row * k, k, n - row < TILE ? n - row : TILE, k, b + (size_t)row * k_tiles * TILE,
                          1);
    }
    size_t count = (size_t)row_tiles * col_tiles * TILE_HALFS;
    void *scratch = aligned_alloc(128, (hmx->scratch_bytes + 127u) / 128u * 128u), *out = room(count * sizeof(float));
    if (scratch == NULL) {
        fault("no memory for the matrix unit");
    }
    if (narrowed) {
        hmx->multiply((hvdc_hmx_matrix){a, k_tiles}, (hvdc_hmx_matrix){b, k_tiles}, row_tiles, col_tiles, k_tiles, out,
                      col_tiles, scratch);
    } else {
        hmx->sums((hvdc_hmx_matrix){a, k_tiles}, (hvdc_hmx_matrix){b, k_tiles}, row_tiles, col_tiles, k_tiles, out,
                  scratch);
    }
    answer(out, count * (narrowed ? sizeof(uint16_t) : sizeof(float)));
    free(scratch);
}

static void multiply(const uint32_t *sizes) { product(sizes, true); }

static void sums(const uint32_t *sizes) { product(sizes, false); }

static void attention(const uint32_t *sizes) {
    uint32_t m = sizes[0], l = sizes[1], heads = sizes[2], width = heads * sizes[3];
    const uint16_t *q = take((size_t)m * width, sizeof *q), *k = take((size_t)l * width, sizeof *k);
    const uint16_t *v = take((size_t)l * width, sizeof *v);
    npu_engine npu;
    npu_keys keys = {0};
    prepare(&npu, &(hvdc_geometry){.width = width, .ffn_width = 32, .heads = heads, .text_tokens = l}, m);
    if (!npu_allocate_keys(&npu, l, &keys, NULL)) {
        fault("no memory for keys and values");
    }
    npu_pack(&npu, q, m, NULL, NULL, NPU_QUERY, NULL);
    npu_pack(&npu, k, l, NULL, NULL, NPU_KEYS, &keys);
    npu_pack(&npu, v, l, NULL, NULL, NPU_VALUES, &keys);
    npu_attend(&npu, &keys);
    answer(npu.output, (size_t)m * width * sizeof *npu.output);
    npu_free_keys(&keys);
    npu_release(&npu);
}

static void layer_norm(const uint32_t *sizes) {
    uint32_t m = sizes[0], n = sizes[1];
    const float *x = take((size_t)m * n, sizeof *x);
    const float *factor = sizes[2] ? take(n, sizeof *factor) : NULL,
                *addend = sizes[2] ? take(n, sizeof *addend) : NULL;
    float *work = room(n * sizeof *work);
    uint16_t *y = room((size_t)m * n * sizeof *y);
    for (size_t row = 0; row < m; row++) {
        hvdc_hvx_for(state.cpu)->layer_norm(x + row * n, n, 1e-6, factor, addend, work, y + row * n);
    }
    answer(y, (size_t)m * n * sizeof *y);
}

static void rms_norm(const uint32_t *sizes) {
    uint32_t m = sizes[0], n = sizes[1], heads = sizes[2], dim = n / heads;
    const uint16_t *x = take((size_t)m * n, sizeof *x);
    const float *gain = take(n, sizeof *gain);
    const float *rotations = sizes[3] ? take((size_t)m * dim, sizeof *rotations) : NULL;
    float *work = room(n * sizeof *work);
    uint16_t *y = room((size_t)m * n * sizeof *y);
    for (size_t row = 0; row < m; row++) {
        hvdc_hvx_for(state.cpu)->rms_norm(x + row * n, n, 1e-6, gain, heads,
                                          rotations == NULL ? NULL : rotations + row * dim, work, y + row * n);
    }
    answer(y, (size_t)m * n * sizeof *y);
}

static void residual(const uint32_t *sizes) {
    float *x = take(sizes[0], sizeof *x);
    const uint16_t *y = take(sizes[0], sizeof *y);
    const float *gate = sizes[1] ? take(sizes[0], sizeof *gate) : NULL;
    hvdc_hvx_for(state.cpu)->residual(x, y, gate, sizes[0]);
    answer(x, sizes[0] * sizeof *x);
}

static void panel(const uint32_t *sizes) {
    uint32_t m = sizes[0], n = sizes[1], k = sizes[2];
    const float *x = take((size_t)m * k, sizeof *x), *b = take((size_t)k * 32u, sizeof *b),
                *bias = take(n, sizeof *bias);
    float *y = room((size_t)m * n * sizeof *y);
    hvdc_multiply_for(state.cpu)(x, k, m, k, b, n, bias, y, n);
    answer(y, (size_t)m * n * sizeof *y);
}

static void count_indices(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    uint8_t *times = context;
    for (uint32_t i = first; i < first + count; i++) {
        times[i]++;
    }
    if (worker >= state.options.threads) {
        fault("a worker beyond the last one");
    }
}

static void pool(const uint32_t *sizes) {
    uint8_t *times = room(sizes[0]);
    memset(times, 0, sizes[0]);
    hvdc_pool *made;
    hvdc_failure failure;
    if (!hvdc_pool_open(state.options.threads, &made, &failure)) {
        fault(failure.message);
    }
    hvdc_pool_run(made, sizes[0], sizes[1], count_indices, times);
    hvdc_pool_close(made);
    answer(times, sizes[0]);
}

static const struct {
    const char *name;
    int sizes;
    void (*ask)(const uint32_t *sizes);
} QUESTIONS[] = {
    {"narrow", 1, halfs},
    {"widen", 1, floats},
    {"exp2", 1, exp2s},
    {"gelu", 1, gelus},
    {"weight", 2, weight},
    {"linear", 4, linear},
    {"up", 3, up},
    {"multiply", 3, multiply},
    {"sums", 3, sums},
    {"attention", 4, attention},
    {"layer_norm", 3, layer_norm},
    {"rms_norm", 4, rms_norm},
    {"residual", 2, residual},
    {"panel", 3, panel},
    {"pool", 2, pool},
};

/* The numbers of a line, at most `most`; 0 for what is not a number. */
static int numbers(char *line, uint32_t *sizes, int most) {
    int count = 0;
    while (count < most && *line == ' ') {
        char *end;
        sizes[count] = (uint32_t)strtoul(line + 1, &end, 10);
        if (end == line + 1) {
            return 0;
        }
        line = end;
        count++;
    }
    return *line == '\n' ? count : 0;
}

static bool ask(char *line) {
    uint32_t sizes[4];
    for (size_t i = 0; i < sizeof QUESTIONS / sizeof *QUESTIONS; i++) {
        size_t length = strlen(QUESTIONS[i].name);
        if (strncmp(line, QUESTIONS[i].name, length) == 0 && numbers(line + length, sizes, 4) == QUESTIONS[i].sizes) {
            QUESTIONS[i].ask(sizes);
            while (state.count > 0) {
                free(state.arrays[--state.count]);
            }
            return true;
        }
    }
    return false;
}

/* Memory in VTCM's place, of exactly this size; freed at the end. */
static void *open_staged(size_t bytes) {
    hvdc_failure failure;
    void *vtcm = aligned_alloc(HVDC_VTCM_TILE_BYTES, bytes);
    if (vtcm == NULL) {
        fault("no memory in VTCM's place");
    }
    if (!hvdc_hmx_staged_open(vtcm, bytes, 0, &failure)) {
        fault(failure.message);
    }
    state.options.unit = hvdc_hmx_staged();
    return vtcm;
}

int main(int argc, char **argv) {
    char line[256];
    hvdc_failure failure;
    void *vtcm = NULL;
    if (argc < 3 || argc > 5 || (state.options.threads = (uint32_t)strtoul(argv[2], NULL, 10)) == 0u ||
        (argc >= 4 && !hvdc_npu_sums_of_name(argv[3], &state.options.sums))) {
        fault("say a level and a number of threads, then fast or exact, or nothing");
    }
    state.options.cpu = argv[1];
    if (!hvdc_cpu_select(argv[1], &state.cpu, &failure)) {
        fault(failure.message);
    }
    if (argc == 5) {
        vtcm = open_staged((size_t)strtoul(argv[4], NULL, 10) << 10);
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (!ask(line)) {
            (void)fputs("hvdc_kernels: what is this question?\n", stderr);
            return 2;
        }
    }
    hvdc_hmx_staged_close();
    free(vtcm);
    return 0;
}
