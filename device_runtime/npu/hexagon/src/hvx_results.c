/* What becomes of a GEMM's sums, a tile of FP16. A vector is two of its rows, taking turns. */
#include "hvx_units.h"
#include "lanes.h"

static inline lanes2 rows_of(const uint16_t *tile, uint32_t row) {
    return lanes_widen_turns(*(const lanes *)(const void *)(tile + AT(row, 0u)));
}

/* A row's FP32 values narrowed to the first `columns` places of a row of y. */
static inline void put_row(uint16_t *y, lanes values, uint32_t columns) {
    lanes_store_part(y, lanes_narrow(values, Q6_V_vzero()), columns * (uint32_t)sizeof *y);
}

void hvx_add_bias(const uint16_t *tile, const float *bias, uint32_t rows, uint32_t columns, uint16_t *y,
                  size_t stride) {
    const lanes biases = lanes_load(bias);
    for (uint32_t row = 0; row < rows; row += 2u) {
        lanes2 values = rows_of(tile, row);
        put_row(y + row * stride, lanes_add(Q6_V_lo_W(values), biases), columns);
        if (row + 1u < rows) put_row(y + (row + 1u) * stride, lanes_add(Q6_V_hi_W(values), biases), columns);
    }
}

void hvx_add_bias_gelu(const uint16_t *tile, const float *bias, uint16_t *y) {
    const lanes biases = lanes_load(bias);
    for (uint32_t row = 0; row < TILE; row += 2u) {
        lanes2 values = rows_of(tile, row);
        lanes sums = lanes_narrow_turns(lanes_add(Q6_V_lo_W(values), biases), lanes_add(Q6_V_hi_W(values), biases));
        values = lanes_widen_turns(sums);
        *(lanes *)(void *)(y + AT(row, 0u)) =
            lanes_narrow_turns(lanes_gelu(Q6_V_lo_W(values)), lanes_gelu(Q6_V_hi_W(values)));
    }
}

static inline void add_row(uint16_t *y, lanes values, uint32_t columns) {
    lanes before = Q6_V_lo_W(lanes_widen(lanes_load_part(y, columns * (uint32_t)sizeof *y)));
    put_row(y, lanes_add(before, values), columns);
}

void hvx_add(const uint16_t *tile, uint32_t rows, uint32_t columns, uint16_t *y, size_t stride) {
    for (uint32_t row = 0; row < rows; row += 2u) {
        lanes2 values = rows_of(tile, row);
        add_row(y + row * stride, Q6_V_lo_W(values), columns);
        if (row + 1u < rows) add_row(y + (row + 1u) * stride, Q6_V_hi_W(values), columns);
    }
}

void hvx_gelu(float *x, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        uint32_t bytes = (uint32_t)((count - i < LANES ? count - i : LANES) * sizeof *x);
        lanes_store_part(x + i, lanes_gelu(lanes_load_part(x + i, bytes)), bytes);
    }
}
