#include "attention.h"

#include <math.h>
#include <string.h>

#include "hvdc/tiles.h"

static uint32_t round_up(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

uint32_t hvdc_attention_stored(uint32_t tokens) { return round_up(tokens, HVDC_TILE_HMX_INT8_K4_ROWS); }

bool hvdc_attention_open(hvdc_device *d, hvdc_gemm *g, uint32_t heads, uint32_t head, uint32_t most_rows,
                         uint32_t most_keys, hvdc_attention *a, hvdc_failure *failure) {
    memset(a, 0, sizeof *a);
    a->heads = heads;
    a->head = head;
    a->head_stride = round_up(head, HVDC_TILE_HMX_INT8_K4_ROWS);
    a->rows = most_rows < HVDC_ATTENTION_ROWS ? most_rows : HVDC_ATTENTION_ROWS;
    const uint32_t stored = hvdc_attention_stored(most_keys);
    /* FP16 scores are the largest; on a CPU it is the probabilities, four times as wide while they are multiplied. */
    const uint64_t row_bytes = (uint64_t)heads * stored * (g->shape.pairs ? 2 * sizeof(uint16_t) : sizeof(uint16_t));
    const uint64_t fitting = d->max_buffer_bytes / row_bytes;
    const uint32_t spare = g->shape.pairs ? g->shape.rows : 1; /* split rows are padded to whole ones */
    if (fitting < a->rows + spare) {
        a->rows = fitting > spare ? (uint32_t)fitting - spare : 1;
    }
    const uint64_t elements = (uint64_t)heads * a->rows * stored;
    const uint64_t slack = (uint64_t)HVDC_GEMM_SLACK_ROWS * stored;
    hvdc_gemm_need(g, a->rows, a->head_stride / 4, stored, heads);
    hvdc_gemm_need(g, a->rows, stored / 4, head, heads);
    if (hvdc_device_allocate(d, "attention's scores", elements * sizeof(uint16_t), false, &a->scores, failure) &&
        hvdc_device_allocate(d, "attention's probabilities", elements + slack, true, &a->probabilities, failure) &&
        hvdc_device_allocate(d, "attention's sums", (uint64_t)heads * a->rows * sizeof(int32_t), false, &a->totals,
                             failure)) {
        return true;
    }
    hvdc_attention_release(d, a);
    return false;
}

void hvdc_attention_release(hvdc_device *d, hvdc_attention *a) {
    hvdc_device_free(d, &a->scores);
    hvdc_device_free(d, &a->probabilities);
    hvdc_device_free(d, &a->totals);
}

static bool run_rows(hvdc_device *d, hvdc_gemm *g, hvdc_rows *r, hvdc_attention *a, cl_mem queries, float query_scale,
                     uint32_t first, uint32_t rows, const hvdc_keys *k, cl_mem out, uint32_t out_stride,
                     hvdc_failure *failure) {
    const uint32_t row_words = a->heads * a->head_stride / 4, head_words = a->head_stride / 4;
    const hvdc_product scores = {.a = queries,
                                 .a_offset = first * row_words,
                                 .a_row = row_words,
                                 .a_batch = head_words,
                                 .b = k->keys,
                                 .b_batch = k->stored * head_words,
                                 .words = head_words,
                                 .rows = rows,
                                 .columns = k->stored,
                                 .batches = a->heads};
    const hvdc_product values = {.a = a->probabilities.memory,
                                 .a_row = k->stored / 4,
                                 .a_batch = rows * (k->stored / 4),
                                 .b = k->values,
                                 .b_batch = k->stored * head_words,
                                 .words = k->stored / 4,
                                 .rows = rows,
                                 .columns = a->head,
                                 .batches = a->heads};
    /* Rounded after each step, as the oracle's FP32 tensors are. */
    const float product = query_scale * k->key_scale;
    const float factor = product / (float)sqrt((double)a->head);
    return hvdc_gemm_scores(d, g, &scores, a->scores.memory, k->stored, rows * k->stored, factor, failure) &&
           hvdc_rows_softmax(d, r, a->scores.memory, rows, a->heads, k->count, k->stored, a->probabilities.memory,
                             a->totals.memory, failure) &&
           hvdc_gemm_values(d, g, &values, out, first * out_stride, out_stride, a->head, k->value_scale,
                            a->totals.memory, failure);
}

bool hvdc_attention_run(hvdc_device *d, hvdc_gemm *g, hvdc_rows *r, hvdc_attention *a, cl_mem queries,
                        float query_scale, uint32_t rows, const hvdc_keys *keys, cl_mem out, uint32_t out_stride,
                        hvdc_failure *failure) {
    for (uint32_t first = 0; first < rows; first += a->rows) {
        const uint32_t count = rows - first < a->rows ? rows - first : a->rows;
        if (!run_rows(d, g, r, a, queries, query_scale, first, count, keys, out, out_stride, failure)) {
            return false;
        }
    }
    return true;
}
