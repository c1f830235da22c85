/* Packs W[n][k] = 31 n + 7 k (mod 251), which no exchange of indices leaves unchanged, into one tile of each order by
 * the generated macros, and writes the tiles' bytes to standard output. */
#include <stdint.h>
#include <stdio.h>

#include "hvdc/tiles.h"

static unsigned value(unsigned n, unsigned k) { return (31u * n + 7u * k) % 251u; }

int main(void) {
    static uint8_t int8[HVDC_TILE_HMX_INT8_K4_BYTES];
    static uint16_t fp16[HVDC_TILE_HMX_FP16_2_BYTES / HVDC_TILE_HMX_FP16_2_ELEMENT_BYTES];
    for (unsigned k = 0; k < HVDC_TILE_HMX_INT8_K4_ROWS; k++)
        for (unsigned n = 0; n < HVDC_TILE_HMX_INT8_K4_COLS; n++)
            int8[HVDC_TILE_HMX_INT8_K4_OFFSET(k, n)] = (uint8_t)value(n, k);
    for (unsigned k = 0; k < HVDC_TILE_HMX_FP16_2_ROWS; k++)
        for (unsigned n = 0; n < HVDC_TILE_HMX_FP16_2_COLS; n++)
            fp16[HVDC_TILE_HMX_FP16_2_OFFSET(k, n)] = (uint16_t)value(n, k);
    return fwrite(int8, 1, sizeof int8, stdout) == sizeof int8 && fwrite(fp16, 1, sizeof fp16, stdout) == sizeof fp16
               ? 0
               : 1;
}
