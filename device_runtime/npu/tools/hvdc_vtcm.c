/* hvdc_vtcm: what the DSP's matrix unit keeps in VTCM; see hexagon/src/vtcm.h.
 *
 *   hvdc_vtcm [KIB]                  a table for each kind of product of a block of DCM-Wan2.1, in Markdown
 *   hvdc_vtcm plans                  for each line of standard input, BYTES ROW_TILES COL_TILES K_TILES PARTS: a line
 *                                    "rows cols k w_slots results_at rows_at weights_at bytes fetched_tiles"
 *   hvdc_vtcm operand OFFSET TILES   gives the model of the unit rows that begin OFFSET bytes behind a bank's begin
 *   hvdc_vtcm scale OFFSET WORD      gives it scales, all of them WORD
 *   hvdc_vtcm open OFFSET TIMES      opens the unit with VTCM from there on, without closing it in between
 *
 * Exit status: 0, 1 for a fault, 2 for another question; an abort where an operand may not be as it is. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hmx_staged.h"
#include "unit.h"
#include "vtcm_products.h"

static const hvdc_geometry dcm_wan = {.width = 1536, .heads = 12, .ffn_width = 8960, .rank = 128};

#define KIB(bytes) ((unsigned)(((bytes) + 1023u) / 1024u))

static int fault(const char *why) {
    (void)fprintf(stderr, "hvdc_vtcm: %s\n", why);
    return 1;
}

static void print_row(const char *name, const hvdc_vtcm_shape *shape, const hvdc_vtcm_plan *plan) {
    const uint32_t tile = HVDC_VTCM_TILE_BYTES;
    const uint64_t fetched = hvdc_vtcm_fetched_tiles(shape, plan) * tile;
    const uint64_t pairs = (uint64_t)shape->row_tiles * shape->col_tiles * shape->k_tiles;
    (void)printf("| %s | %u × %u × %u | %u of %u | %u × %u | %u × %u | %u × %u | %u | %u | %u |\n", name,
                 (unsigned)shape->row_tiles, (unsigned)shape->col_tiles, (unsigned)shape->k_tiles, (unsigned)plan->k,
                 (unsigned)shape->k_tiles, HVDC_VTCM_SLOTS, KIB(plan->rows * plan->k * tile), (unsigned)plan->w_slots,
                 KIB(plan->k * tile), HVDC_VTCM_SLOTS, KIB(plan->rows * shape->parts * tile), KIB(plan->bytes),
                 KIB(fetched), (unsigned)((fetched + pairs - 1u) / pairs));
}

static int table(uint32_t budget) {
    hvdc_vtcm_product products[HVDC_VTCM_PRODUCTS];
    hvdc_vtcm_plan plan;
    hvdc_failure failure;
    hvdc_vtcm_products(&dcm_wan, products);
    (void)printf(
        "| product | tiles: rows × columns × k | k at once | rows, KiB | weights, KiB | results, KiB | all, KiB | "
        "fetched by a call, KiB | fetched for a pair of tiles, bytes |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        if (!hvdc_vtcm_plan_for(budget, &products[i].shape, &plan, &failure)) {
            return fault(failure.message);
        }
        print_row(products[i].name, &products[i].shape, &plan);
    }
    return 0;
}

static bool numbers(const char *line, uint32_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *end;
        values[i] = (uint32_t)strtoul(line, &end, 10);
        if (end == line || values[i] == 0u) {
            return false;
        }
        line = end;
    }
    return *line == '\n';
}

static int plans(void) {
    char line[256];
    uint32_t v[5];
    hvdc_vtcm_plan p;
    hvdc_failure failure;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (!numbers(line, v, sizeof v / sizeof *v)) {
            return 2;
        }
        const hvdc_vtcm_shape shape = {v[1], v[2], v[3], v[4]};
        if (!hvdc_vtcm_plan_for(v[0], &shape, &p, &failure)) {
            return fault(failure.message);
        }
        (void)printf("%u %u %u %u %u %u %u %u %" PRIu64 "\n", (unsigned)p.rows, (unsigned)p.cols, (unsigned)p.k,
                     (unsigned)p.w_slots, (unsigned)p.results_at, (unsigned)p.rows_at, (unsigned)p.weights_at,
                     (unsigned)p.bytes, hvdc_vtcm_fetched_tiles(&shape, &p));
    }
    return 0;
}

static int give(bool scale, size_t offset, uint32_t value) {
    const size_t bytes = 3u * (size_t)HVDC_VTCM_BANK_BYTES;
    uint8_t *memory = calloc(1, bytes);
    if (memory == NULL || offset > HVDC_VTCM_BANK_BYTES) {
        free(memory);
        return fault("no memory for two banks, or an offset beyond the first");
    }
    uint8_t *bank = memory + (HVDC_VTCM_BANK_BYTES - (uintptr_t)memory % HVDC_VTCM_BANK_BYTES);
    if (scale) {
        uint32_t *words = (void *)bank;
        for (uint32_t i = 0; i < HVDC_HMX_TILE; i++) {
            words[i] = value;
        }
        hvdc_unit_scale(bank + offset);
    } else {
        hvdc_unit_accumulate(bank + offset, bank, value);
    }
    hvdc_unit_store(bank + HVDC_VTCM_TILE_BYTES);
    hvdc_unit_finish(bank + HVDC_VTCM_TILE_BYTES);
    free(memory);
    return 0;
}

static int open(size_t offset, uint32_t times) {
    const size_t bytes = (size_t)HVDC_VTCM_LEAST_BYTES;
    hvdc_failure failure;
    uint8_t *memory =
        offset > HVDC_VTCM_TILE_BYTES ? NULL : aligned_alloc(HVDC_VTCM_TILE_BYTES, bytes + HVDC_VTCM_TILE_BYTES);
    int status = memory == NULL ? fault("no memory, or an offset beyond a tile") : 0;
    for (uint32_t i = 0; i < times && status == 0; i++) {
        status = hvdc_hmx_staged_open(memory + offset, bytes, 0, &failure) ? 0 : fault(failure.message);
    }
    hvdc_hmx_staged_close();
    free(memory);
    return status == 0 && hvdc_hmx_staged() != NULL ? fault("it is open still") : status;
}

int main(int argc, char **argv) {
    if (argc == 4 && (strcmp(argv[1], "operand") == 0 || strcmp(argv[1], "scale") == 0)) {
        return give(argv[1][0] == 's', (size_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
    }
    if (argc == 4 && strcmp(argv[1], "open") == 0) {
        return open((size_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
    }
    if (argc == 2 && strcmp(argv[1], "plans") == 0) {
        return plans();
    }
    return argc > 2 ? 2 : table(argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) << 10 : HVDC_VTCM_V79_BYTES);
}
