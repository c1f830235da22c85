/* The matrix unit's instructions, of Hexagon V73 and later. Upstream's assembler does not know them: there they are words,
 * with their operands in the registers that the words name. Qualcomm's compiler (-mhmx) has mnemonics, by which each word
 * can be checked; with it this file was never compiled.
 *
 * Words: bits 15:14 say whether a packet goes on (01) or ends (11); the two that multiply have to be one packet. Source of
 * the encodings: qualcomm/qemu, target/hexagon/imported/hmx/encode_ext.def. Of the operands: qualcomm/hexagon-mlir,
 * bin/runtime/hmx/src/HMXAPI.c, which was run on a V79. For n tiles one after the other, both ranges are 2048 n − 1: bits
 * 31:11 of an activation's are n − 1 and the others a whole tile, a weight's are the distance to its last byte. Results
 * are stored by the form that converts and stores at once: the other one, cvt and mxmem, sets negative numbers to zero
 * there unless it is told not to.
 *
 * No word of this file was ever executed: Debian's emulators have none of them. */
#include "fault.h"
#include "unit.h"
#include "vtcm.h"

#if !defined(__HEXAGON_ARCH__) || __HEXAGON_ARCH__ < 73
#error "the matrix unit needs Hexagon V73"
#endif

#define WHOLE_TILE 0u /* of a store */

static void require_tiles(const void *address, uint32_t tiles) {
    hvdc_npu_require_operand(address, tiles * HVDC_VTCM_TILE_BYTES, HVDC_VTCM_TILE_BYTES, HVDC_VTCM_BANK_BYTES);
}

#if defined(__HMX_ARCH__)
#define CLEAR() __asm__ volatile("mxclracc.hf" ::: "memory")
#define MULTIPLY(rows, weights, range) \
    __asm__ volatile("{ activation.hf = mxmem(%0,%1):deep\n  weight.hf = mxmem(%2,%3) }" ::"r"(rows), "r"(range), \
                     "r"(weights), "r"(range) \
                     : "memory")
#define SCALE(scales) __asm__ volatile("bias = mxmem2(%0)" ::"r"(scales) : "memory")
#define STORE(tile) __asm__ volatile("mxmem(%0,%1):after.hf = acc" ::"r"(tile), "r"(WHOLE_TILE) : "memory")
#define STORE_AND_KEEP(tile) \
    __asm__ volatile("mxmem(%0,%1):after:retain.hf = acc" ::"r"(tile), "r"(WHOLE_TILE) : "memory")
#else
#define CLEAR() __asm__ volatile(".word 0xA6E0C013" ::: "memory") /* { mxclracc.hf } */
#define MULTIPLY(rows, weights, range) /* { activation.hf = mxmem(r0,r1):deep; weight.hf = mxmem(r2,r3) } */ \
    do { \
        register const void *r0 __asm__("r0") = (rows); \
        register uint32_t r1 __asm__("r1") = (range); \
        register const void *r2 __asm__("r2") = (weights); \
        register uint32_t r3 __asm__("r3") = (range); \
        __asm__ volatile(".word 0x920041E2\n\t.word 0x9202E3EF" ::"r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory"); \
    } while (0)
#define SCALE(scales) /* { bias = mxmem2(r0) } */ \
    do { \
        register const void *r0 __asm__("r0") = (scales); \
        __asm__ volatile(".word 0x9200C3FE" ::"r"(r0) : "memory"); \
    } while (0)
#define STORE_WORD(word, tile) \
    do { \
        register void *r0 __asm__("r0") = (tile); \
        register uint32_t r1 __asm__("r1") = WHOLE_TILE; \
        __asm__ volatile(".word " word ::"r"(r0), "r"(r1) : "memory"); \
    } while (0)
#define STORE(tile) STORE_WORD("0xA6E0E104", tile)          /* { mxmem(r0,r1):after.hf = acc } */
#define STORE_AND_KEEP(tile) STORE_WORD("0xA6E0E10C", tile) /* { mxmem(r0,r1):after:retain.hf = acc } */
#endif

void hvdc_unit_clear(void) { CLEAR(); }

void hvdc_unit_accumulate(const void *rows, const void *weights, uint32_t tiles) {
    hvdc_npu_require(tiles <= HVDC_UNIT_PACKET_TILES, "more pairs of tiles than an instruction multiplies");
    require_tiles(rows, tiles);
    require_tiles(weights, tiles);
    MULTIPLY(rows, weights, tiles * HVDC_VTCM_TILE_BYTES - 1u);
}

void hvdc_unit_scale(const void *scales) {
    hvdc_npu_require_operand(scales, HVDC_VTCM_SCALE_BYTES, HVDC_VTCM_SCALE_BYTES, HVDC_VTCM_BANK_BYTES);
    SCALE(scales);
}

void hvdc_unit_store(void *tile) {
    require_tiles(tile, 1);
    STORE(tile);
}

void hvdc_unit_store_and_keep(void *tile) {
    require_tiles(tile, 1);
    STORE_AND_KEEP(tile);
}

/* A load sees what the same thread stored before, so that it waits for the unit; and what uses it waits for the load. */
void hvdc_unit_finish(const void *tile) {
    const uint8_t *end = (const uint8_t *)tile + HVDC_VTCM_TILE_BYTES - sizeof(uint32_t);
    uint32_t word;
    __asm__ volatile("{ %0 = memw(%1) }\n\t{ p0 = cmp.eq(%0,#0) }" : "=r"(word) : "r"(end) : "p0", "memory");
}
