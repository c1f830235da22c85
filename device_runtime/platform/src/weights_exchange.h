/* Messages that pass weights from one process to the other, in this order: OFFER from the owner, READY from the reader,
 * one FILE with its descriptor for each shared file, TAKEN from the reader. Either end may say NO (hvdc_failure) instead
 * of what is due. They change with HVDC_ABI. */
#ifndef HVDC_WEIGHTS_EXCHANGE_H
#define HVDC_WEIGHTS_EXCHANGE_H

#include <stdint.h>

#include "hvdc/artifact.h"

enum hvdc_exchange {
    HVDC_EXCHANGE_OFFER = 0x100,
    HVDC_EXCHANGE_READY,
    HVDC_EXCHANGE_FILE,
    HVDC_EXCHANGE_TAKEN,
    HVDC_EXCHANGE_NO
};

typedef struct hvdc_weights_offer {
    uint8_t index_sha256[32];
    uint32_t files, shared_files;
    uint64_t shared_bytes;
} hvdc_weights_offer;

typedef struct hvdc_shared_file {
    uint32_t file, reserved;
    uint64_t bytes;
} hvdc_shared_file;

/* What is due for an artifact. */
hvdc_weights_offer hvdc_weights_offer_of(const hvdc_artifact *artifact);

#endif
