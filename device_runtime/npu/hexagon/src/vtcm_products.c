#include "vtcm_products.h"

#include "npu_internal.h"

void hvdc_vtcm_products(const hvdc_geometry *g, hvdc_vtcm_product products[HVDC_VTCM_PRODUCTS]) {
    const uint32_t rows = HVDC_HMX_ROW_TILES, cols = HVDC_HMX_COL_TILES, queries = HVDC_HMX_QUERY_TILES;
    const uint32_t width = npu_tiles(g->width), rank = npu_tiles(g->rank), head = npu_tiles(g->width / g->heads);
    const hvdc_vtcm_product all[HVDC_VTCM_PRODUCTS] = {
        {"attention's linears", {rows, cols, width, 1}},
        {"feed-forward, up", {rows, cols, width, 1}},
        {"feed-forward, down", {rows, cols, npu_tiles(g->ffn_width), 1}},
        {"adapter, A", {rows, rank, width, 1}},
        {"adapter, B", {rows, cols, rank, 1}},
        {"attention, scores", {queries, cols, head, 1}},
        {"attention, values", {queries, head, HVDC_HVX_KEY_TILES, 2}},
    };
    for (uint32_t i = 0; i < HVDC_VTCM_PRODUCTS; i++) products[i] = all[i];
}

uint32_t hvdc_vtcm_useful_bytes(const hvdc_geometry *geometry) {
    hvdc_vtcm_product products[HVDC_VTCM_PRODUCTS];
    uint32_t most = HVDC_VTCM_LEAST_BYTES;
    hvdc_vtcm_products(geometry, products);
    for (uint32_t i = 0; i < HVDC_VTCM_PRODUCTS; i++) {
        const hvdc_vtcm_shape *shape = &products[i].shape;
        hvdc_vtcm_plan plan;
        if (shape->col_tiles == 0u || shape->k_tiles == 0u) {
            continue;
        }
        if (hvdc_vtcm_plan_for(HVDC_VTCM_MOST_BYTES, shape, &plan, NULL) && plan.bytes > most) {
            most = plan.bytes;
        }
    }
    return most;
}
