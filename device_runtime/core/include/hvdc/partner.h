/* Two engines that share every linear: a partner computes its first columns while the engine that asks computes the
 * others, and the parts are joined before anything else happens. quant/paths/tensor.py says what the numbers are.
 *
 * The split is at the edges of tiles, and the same in all blocks and steps. What the engine that asks would multiply goes
 * through an exchange, memory that both see: FP16 in, FP32 out. */
#ifndef HVDC_PARTNER_H
#define HVDC_PARTNER_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The linears of a block, in its order. */
enum hvdc_linear_id {
    HVDC_SELF_Q = 0,
    HVDC_SELF_K,
    HVDC_SELF_V,
    HVDC_SELF_OUT,
    HVDC_CROSS_Q,
    HVDC_CROSS_K,
    HVDC_CROSS_V,
    HVDC_CROSS_OUT,
    HVDC_FFN_UP,
    HVDC_FFN_DOWN,
    HVDC_LINEARS
};

#define HVDC_SLICE_COLUMNS 32u /* of a tile, in every order */

/* Columns [0, 32 * tiles) of W x + b, and of the detail expert's adapter, for `rows` rows. Of the linears of the text
 * `step` is any that the expert executes. */
typedef struct hvdc_slice {
    uint32_t step, block;
    uint32_t linear; /* enum hvdc_linear_id */
    uint32_t rows, tiles;
} hvdc_slice;

/* `input` FP16 [rows][k, padded to whole tiles with zeros]; `output` FP32 [rows][32 * tiles]. Neither has more than
 * `values` of them. */
typedef struct hvdc_exchange {
    uint64_t values;
    uint16_t *input;
    float *output;
} hvdc_exchange;

typedef struct hvdc_partner {
    double share; /* of each linear's columns, 0 to 1; 0: nothing is asked of it */
    hvdc_exchange exchange;
    void *context;
    /* Starts with what is in exchange.input. NULL: nothing is asked of it yet. */
    bool (*begin)(void *context, const hvdc_slice *slice, hvdc_failure *failure);
    /* Waits until exchange.output is there. */
    bool (*finish)(void *context, hvdc_failure *failure);
} hvdc_partner;

/* How many of a linear's `tiles` columns of tiles are the partner's: to the nearest edge, a half upwards. */
static inline uint32_t hvdc_slice_tiles(double share, uint32_t tiles) {
    double wanted = share * (double)tiles;
    return share >= 1.0 ? tiles : share > 0.0 ? (uint32_t)(wanted + 0.5) : 0u;
}

#ifdef __cplusplus
}
#endif

#endif
