#include "gemm.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "hvdc/tiles.h"
#include "program.h"

/* What kernels/gemm.cl and rows.cl rely on beyond the macros: columns' words follow one another, then groups of four k, then
 * tiles. */
static_assert(HVDC_TILE_HMX_INT8_K4_OFFSET(3u, 0u) == 3u, "four k of a column are a word");
static_assert(HVDC_TILE_HMX_INT8_K4_OFFSET(0u, 1u) == 4u, "words of neighbouring columns are neighbours");
static_assert(HVDC_TILE_HMX_INT8_K4_OFFSET(4u, 0u) * HVDC_TILE_HMX_INT8_K4_ROWS / 4u == HVDC_TILE_HMX_INT8_K4_BYTES,
              "groups follow one another into the next tile");

static uint32_t round_up(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

static hvdc_sources sources_of(const hvdc_gemm *g) {
    return (hvdc_sources){
        {hvdc_source_tiles_h, hvdc_source_common_cl, hvdc_source_dot_cl, hvdc_source_gemm_cl}, 4, g->options};
}

void hvdc_gemm_keep(hvdc_device *d, const hvdc_gemm *g) {
    const hvdc_sources sources = sources_of(g);
    hvdc_program_keep(d, &sources, g->program);
}

bool hvdc_gemm_build(hvdc_device *d, enum hvdc_gpu_dot dot, bool emulate, const hvdc_gemm_shape *shape,
                     const char *standard, hvdc_gemm *g, hvdc_failure *failure) {
    memset(g, 0, sizeof *g);
    g->dot = dot;
    g->shape = *shape;
    (void)snprintf(g->options, sizeof g->options, "%s%s-DDOT_FORM=%d -DVECTOR=%u -DPARTS=%u -DROWS=%u%s%s", standard,
                   standard[0] == 0 ? "" : " ", (int)dot, (unsigned)shape->vector, (unsigned)shape->parts,
                   (unsigned)shape->rows, shape->pairs ? " -DPAIRS" : "", emulate ? " -DEMULATE_DOT" : "");
    const hvdc_sources sources = sources_of(g);
    if (!hvdc_program_build(d, &sources, &g->program, failure)) {
        return false;
    }
    bool good = hvdc_program_kernel(d, g->program, "gemm_sums", &g->sums, failure) &&
                hvdc_program_kernel(d, g->program, "gemm_linear", &g->linear, failure) &&
                hvdc_program_kernel(d, g->program, "gemm_scores", &g->scores, failure) &&
                hvdc_program_kernel(d, g->program, "gemm_values", &g->values, failure) &&
                hvdc_program_kernel(d, g->program, "sums_of_rows", &g->sums_of_rows, failure) &&
                hvdc_program_kernel(d, g->program, "sums_of_columns", &g->sums_of_columns, failure) &&
                (!shape->pairs || hvdc_program_kernel(d, g->program, "pack", &g->pack, failure));
    if (!good) {
        hvdc_gemm_release(d, g);
    }
    return good;
}

void hvdc_gemm_release(hvdc_device *d, hvdc_gemm *g) {
    cl_kernel kernels[] = {g->sums, g->linear, g->scores, g->values, g->pack, g->sums_of_rows, g->sums_of_columns};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; ++i) {
        hvdc_device_release_kernel(d, kernels[i]);
    }
    if (g->program != NULL) {
        d->cl.clReleaseProgram(g->program);
    }
    hvdc_device_free(d, &g->packed);
    hvdc_device_free(d, &g->row_sums);
    hvdc_device_free(d, &g->column_sums);
    memset(g, 0, sizeof *g);
}

static void at_least(uint64_t *bytes, uint64_t needed) { *bytes = needed > *bytes ? needed : *bytes; }

void hvdc_gemm_need(hvdc_gemm *g, uint32_t rows, uint32_t words, uint32_t columns, uint32_t batches) {
    if (g->shape.pairs) {
        at_least(&g->packed_bytes, (uint64_t)batches * round_up(rows, g->shape.rows) * words * 2 * sizeof(uint32_t));
    }
    if (g->dot == HVDC_GPU_DOT_QCOM) {
        at_least(&g->row_sum_bytes, (uint64_t)batches * rows * sizeof(int32_t));
        at_least(&g->column_sum_bytes,
                 (uint64_t)batches * round_up(columns, HVDC_TILE_HMX_INT8_K4_COLS) * sizeof(int32_t));
    }
}

bool hvdc_gemm_allocate(hvdc_device *d, hvdc_gemm *g, hvdc_failure *failure) {
    return (g->packed_bytes == 0 ||
            hvdc_device_allocate(d, "scratch of split rows", g->packed_bytes, false, &g->packed, failure)) &&
           (g->row_sum_bytes == 0 ||
            hvdc_device_allocate(d, "sums of rows", g->row_sum_bytes, false, &g->row_sums, failure)) &&
           (g->column_sum_bytes == 0 ||
            hvdc_device_allocate(d, "sums of columns", g->column_sum_bytes, false, &g->column_sums, failure));
}

/* What this form or shape needs to know before it multiplies. */
static bool prepare(hvdc_device *d, hvdc_gemm *g, const hvdc_product *p, hvdc_failure *failure) {
    const uint64_t line[] = {d->is_cpu ? 1 : 64, 1, 1};
    if (g->shape.pairs) {
        const hvdc_argument arguments[] = {HVDC_ARGUMENT(p->a),
                                           HVDC_ARGUMENT(p->a_offset),
                                           HVDC_ARGUMENT(p->a_row),
                                           HVDC_ARGUMENT(p->a_batch),
                                           HVDC_ARGUMENT(p->words),
                                           HVDC_ARGUMENT(p->rows),
                                           HVDC_ARGUMENT(g->packed.memory)};
        const uint64_t global[] = {p->words, round_up(p->rows, g->shape.rows) / g->shape.rows, p->batches};
        const uint64_t words[] = {64, 1, 1};
        return hvdc_device_launch(d, g->pack, arguments, sizeof arguments / sizeof arguments[0], global, words,
                                  failure);
    }
    if (g->dot != HVDC_GPU_DOT_QCOM) {
        return true;
    }
    const hvdc_argument of_rows[] = {HVDC_ARGUMENT(p->a),
                                     HVDC_ARGUMENT(p->a_offset),
                                     HVDC_ARGUMENT(p->a_row),
                                     HVDC_ARGUMENT(p->a_batch),
                                     HVDC_ARGUMENT(p->words),
                                     HVDC_ARGUMENT(p->rows),
                                     HVDC_ARGUMENT(g->row_sums.memory)};
    const hvdc_argument of_columns[] = {HVDC_ARGUMENT(p->b),       HVDC_ARGUMENT(p->b_offset),
                                        HVDC_ARGUMENT(p->b_batch), HVDC_ARGUMENT(p->words),
                                        HVDC_ARGUMENT(p->columns), HVDC_ARGUMENT(g->column_sums.memory)};
    const uint64_t rows[] = {p->rows, 1, p->batches};
    const uint64_t columns[] = {round_up(p->columns, HVDC_TILE_HMX_INT8_K4_COLS), 1, p->batches};
    return hvdc_device_launch(d, g->sums_of_rows, of_rows, sizeof of_rows / sizeof of_rows[0], rows, line, failure) &&
           hvdc_device_launch(d, g->sums_of_columns, of_columns, sizeof of_columns / sizeof of_columns[0], columns,
                              line, failure);
}

#define OPERANDS 12u
#define MAX_ARGUMENTS 24u

static bool launch(hvdc_device *d, hvdc_gemm *g, cl_kernel kernel, const hvdc_product *p, const hvdc_argument *more,
                   uint32_t count, hvdc_failure *failure) {
    const cl_mem a = g->shape.pairs ? g->packed.memory : p->a;
    const hvdc_argument operands[OPERANDS] = {HVDC_ARGUMENT(a),
                                              HVDC_ARGUMENT(p->a_offset),
                                              HVDC_ARGUMENT(p->a_row),
                                              HVDC_ARGUMENT(p->a_batch),
                                              HVDC_ARGUMENT(p->b),
                                              HVDC_ARGUMENT(p->b_offset),
                                              HVDC_ARGUMENT(p->b_batch),
                                              HVDC_ARGUMENT(p->words),
                                              HVDC_ARGUMENT(p->rows),
                                              HVDC_ARGUMENT(p->columns),
                                              HVDC_ARGUMENT(g->row_sums.memory),
                                              HVDC_ARGUMENT(g->column_sums.memory)};
    hvdc_argument arguments[MAX_ARGUMENTS];
    memcpy(arguments, operands, sizeof operands);
    memcpy(arguments + OPERANDS, more, count * sizeof *more);
    const uint32_t columns = g->shape.vector * g->shape.parts;
    const uint64_t global[] = {round_up(p->columns, columns) / columns,
                               round_up(p->rows, g->shape.rows) / g->shape.rows, p->batches};
    const uint64_t local[] = {g->shape.group_columns, g->shape.group_rows, 1};
    return prepare(d, g, p, failure) &&
           hvdc_device_launch(d, kernel, arguments, OPERANDS + count, global, local, failure);
}

bool hvdc_gemm_sums(hvdc_device *d, hvdc_gemm *g, const hvdc_product *p, cl_mem out, uint32_t out_row,
                    uint32_t out_batch, hvdc_failure *failure) {
    const hvdc_argument more[] = {HVDC_ARGUMENT(out), HVDC_ARGUMENT(out_row), HVDC_ARGUMENT(out_batch)};
    return launch(d, g, g->sums, p, more, sizeof more / sizeof more[0], failure);
}

bool hvdc_gemm_linear(hvdc_device *d, hvdc_gemm *g, const hvdc_product *p, cl_mem out, uint32_t out_row, float scale_x,
                      hvdc_place scales, hvdc_place bias, enum hvdc_gemm_add add, hvdc_failure *failure) {
    const cl_int how = (cl_int)add;
    const hvdc_argument more[] = {HVDC_ARGUMENT(out),           HVDC_ARGUMENT(out_row),
                                  HVDC_ARGUMENT(scale_x),       HVDC_ARGUMENT(scales.memory),
                                  HVDC_ARGUMENT(scales.offset), HVDC_ARGUMENT(bias.memory),
                                  HVDC_ARGUMENT(bias.offset),   HVDC_ARGUMENT(how)};
    return launch(d, g, g->linear, p, more, sizeof more / sizeof more[0], failure);
}

bool hvdc_gemm_scores(hvdc_device *d, hvdc_gemm *g, const hvdc_product *p, cl_mem out, uint32_t out_row,
                      uint32_t out_batch, float factor, hvdc_failure *failure) {
    const hvdc_argument more[] = {HVDC_ARGUMENT(out), HVDC_ARGUMENT(out_row), HVDC_ARGUMENT(out_batch),
                                  HVDC_ARGUMENT(factor)};
    return launch(d, g, g->scores, p, more, sizeof more / sizeof more[0], failure);
}

bool hvdc_gemm_values(hvdc_device *d, hvdc_gemm *g, const hvdc_product *p, cl_mem out, uint32_t out_offset,
                      uint32_t out_row, uint32_t out_batch, float scale_v, cl_mem totals, hvdc_failure *failure) {
    const hvdc_argument more[] = {HVDC_ARGUMENT(out),       HVDC_ARGUMENT(out_offset), HVDC_ARGUMENT(out_row),
                                  HVDC_ARGUMENT(out_batch), HVDC_ARGUMENT(scale_v),    HVDC_ARGUMENT(totals)};
    return launch(d, g, g->values, p, more, sizeof more / sizeof more[0], failure);
}
