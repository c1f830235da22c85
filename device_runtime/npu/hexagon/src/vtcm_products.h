/* The products of a block, as far as their sizes decide what they keep in VTCM. */
#ifndef HVDC_NPU_VTCM_PRODUCTS_H
#define HVDC_NPU_VTCM_PRODUCTS_H

#include "hvdc/records.h"
#include "vtcm.h"

#define HVDC_VTCM_PRODUCTS 7u

typedef struct hvdc_vtcm_product {
    const char *name;
    hvdc_vtcm_shape shape; /* of a call; no tiles where a model has no such product */
} hvdc_vtcm_product;

/* Of a model's geometry: width, ffn_width, rank and heads count. */
void hvdc_vtcm_products(const hvdc_geometry *geometry, hvdc_vtcm_product products[HVDC_VTCM_PRODUCTS]);

/* The most that any of them uses; more gains nothing. Less works, from HVDC_VTCM_LEAST_BYTES on, and fetches more. */
uint32_t hvdc_vtcm_useful_bytes(const hvdc_geometry *geometry);

#endif
