/* The matrix unit itself: one accumulator of 32 x 32 sums, operands in VTCM alone. The inner seam of hmx_staged.c, in
 * two builds:
 *
 *   unit_words.c   the instructions of a DSP (Hexagon V73 and later)
 *   unit_model.c   what they compute, in C: sums are exact and rounded once
 *
 * What the instructions take: activations are tiles at multiples of 2048 bytes, weights likewise, scales at a multiple
 * of 256, and no operand crosses a multiple of 4 MiB. Both builds refuse anything else: on a device the unit's answer is a
 * bus error, or a wrong result without a word. One thread at a time: unit_lock.h. */
#ifndef HVDC_NPU_UNIT_H
#define HVDC_NPU_UNIT_H

#include <stdint.h>

#define HVDC_UNIT_PACKET_TILES 32u /* pairs of tiles that one instruction multiplies at most */

void hvdc_unit_clear(void);

/* Adds Σ_i rows[i] · weights[i] for `tiles` <= 32 pairs, each operand's tiles one after the other. */
void hvdc_unit_accumulate(const void *rows, const void *weights, uint32_t tiles);

/* From here on, what is stored is a sum times the scale of its column. `scales`: 32 words with an FP16 number in their
 * lower halves and 0 in the upper ones, then 32 of zero. Powers of two are exact; other scales are not used, since the
 * unit keeps 16 bits of a sum, and whether others were lost, before it multiplies. */
void hvdc_unit_scale(const void *scales);

/* The accumulator, scaled and rounded to FP16, to a tile. It holds nothing that counts thereafter: clear it. */
void hvdc_unit_store(void *tile);

/* The same, and the accumulator keeps its sums. */
void hvdc_unit_store_and_keep(void *tile);

/* The unit works on while its thread does, in the order in which it was told. Returns when it has written `tile`, so that
 * anyone can read that, and has read everything that went into it. */
void hvdc_unit_finish(const void *tile);

#endif
