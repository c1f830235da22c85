/* SHA-256 (FIPS 180-4). */
#ifndef HVDC_SHA256_H
#define HVDC_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define HVDC_SHA256_BYTES 32

typedef struct hvdc_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* taken so far */
    uint8_t block[64]; /* the last bytes % 64 of them */
} hvdc_sha256;

void hvdc_sha256_init(hvdc_sha256 *sha);
void hvdc_sha256_update(hvdc_sha256 *sha, const void *data, size_t bytes);
/* Writes the digest. The context is used up. */
void hvdc_sha256_final(hvdc_sha256 *sha, uint8_t digest[HVDC_SHA256_BYTES]);

#endif
