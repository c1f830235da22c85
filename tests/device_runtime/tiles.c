/* Packs W[n][k] = 31 n + 7 k (mod 251), which no exchange of indices leaves unchanged, into one tile of each order by
 * the generated macros, and writes the tiles' bytes to standard output. The macros that take an id have to agree. */
#include <stdint.h>
#include <stdio.h>

#include "hvdc/tiles.h"

static unsigned value(unsigned n, unsigned k) { return (31u * n + 7u * k) % 251u; }

int main(void) {
    static uint8_t int8[HVDC_TILE_HMX_INT8_K4_BYTES];
    static uint16_t fp16[HVDC_TILE_HMX_FP16_2_BYTES / HVDC_TILE_HMX_FP16_2_ELEMENT_BYTES];
    const unsigned ids[] = {HVDC_TILE_HMX_INT8_K4_ID, HVDC_TILE_HMX_FP16_2_ID};
    for (unsigned k = 0; k < HVDC_TILE_HMX_INT8_K4_ROWS; k++)
        for (unsigned n = 0; n < HVDC_TILE_HMX_INT8_K4_COLS; n++)
            int8[HVDC_TILE_HMX_INT8_K4_OFFSET(k, n)] = (uint8_t)value(n, k);
    for (unsigned k = 0; k < HVDC_TILE_HMX_FP16_2_ROWS; k++)
        for (unsigned n = 0; n < HVDC_TILE_HMX_FP16_2_COLS; n++)
            fp16[HVDC_TILE_HMX_FP16_2_OFFSET(k, n)] = (uint16_t)value(n, k);
    for (unsigned i = 0; i < 2; i++) {
        if (HVDC_TILE_ORDER_ELEMENT_BYTES(ids[i]) != i + 1u) return 1;
        for (unsigned k = 0; k < HVDC_TILE_ORDER_ROWS(ids[i]); k++)
            for (unsigned n = 0; n < HVDC_TILE_ORDER_COLS(ids[i]); n++) {
                unsigned at = HVDC_TILE_ORDER_OFFSET(ids[i], k, n);
                if ((i == 0 ? int8[at] : fp16[at]) != value(n, k)) return 1;
            }
    }
    return fwrite(int8, 1, sizeof int8, stdout) == sizeof int8 && fwrite(fp16, 1, sizeof fp16, stdout) == sizeof fp16
               ? 0
               : 1;
}
