/* Mode hetero-tensor: the worker computes a slice of each of the NPU's linears, and they wait for each other after each.
 *
 * From the worker's READY on, the socket is the NPU's thread's: a slice is a message and its answer, and what it is made
 * of goes through the exchange, shared memory that both write: the NPU's side the input, the worker the output. */
#ifndef HVDC_SHARING_H
#define HVDC_SHARING_H

#include <stdatomic.h>

#include "hvdc/shared_memory.h"
#include "protocol.h"

uint64_t hvdc_exchange_bytes(uint64_t values);

/* The exchange in `memory`, which has hvdc_exchange_bytes. */
hvdc_exchange hvdc_exchange_in(const hvdc_memory *memory, uint64_t values);

/* The owner's side, as the NPU's thread uses it. */
typedef struct hvdc_sharing {
    hvdc_partner *partner; /* NULL: another mode */
    hvdc_channel *channel;
    double timeout_s; /* between a slice and its answer; negative: for ever */
    uint32_t layers;
    bool lost; /* nothing is asked of it any more */
    hvdc_slice slice;
    /* The thread's. */
    uint32_t video;
    atomic_uint_fast64_t *owes_since_ns; /* 0 while it waits for the worker, whose silence has a limit of its own */
    void *context;
    bool (*span)(void *context, const hvdc_span_of_time *span, hvdc_failure *failure);
} hvdc_sharing;

/* Makes partner->begin and ->finish those of `sharing`, with this share and exchange; and the contrary. */
void hvdc_sharing_bind(hvdc_sharing *sharing, double share, hvdc_exchange exchange);
/* The worker is lost, and nothing more is asked of it. Of the thread that uses `sharing`, or before that has work. */
void hvdc_sharing_lose(hvdc_sharing *sharing);
void hvdc_sharing_unbind(hvdc_sharing *sharing);

#endif
