/* What owner and worker say to each other, in this order:
 *
 *     owner                                   worker
 *     HELLO, what the stream is         -->
 *                                       <--   WELCOME, or NO with a sentence
 *     (the weights, if there are: platform/src/weights_exchange.c)
 *     SLOT with a descriptor, each      -->
 *     EXCHANGE with a descriptor        -->                                  in mode hetero-tensor
 *                                       <--   READY when its engine is open, or NO
 *     ASSIGN, whenever a slot is free   -->
 *                                       <--   SPAN for all that it does, HANDOFF, or NO and its end
 *     or MULTIPLY, one after the other  -->                                  in mode hetero-tensor
 *                                       <--   MULTIPLIED, or NO and its end
 *     QUIT                              -->
 *
 * Every message changes with HVDC_ABI (hvdc/channel.h). */
#ifndef HVDC_PROTOCOL_H
#define HVDC_PROTOCOL_H

#include "executor.h"
#include "hvdc/channel.h"
#include "hvdc/partner.h"

enum hvdc_say {
    HVDC_SAY_HELLO = 1,
    HVDC_SAY_WELCOME,
    HVDC_SAY_SLOT,
    HVDC_SAY_READY,
    HVDC_SAY_ASSIGN,
    HVDC_SAY_SPAN, /* hvdc_span_of_time */
    HVDC_SAY_HANDOFF,
    HVDC_SAY_QUIT,
    HVDC_SAY_NO = HVDC_WORKER_SAY_NO, /* hvdc_failure */
    HVDC_SAY_EXCHANGE,
    HVDC_SAY_MULTIPLY, /* hvdc_slice */
    HVDC_SAY_MULTIPLIED
};

typedef struct hvdc_hello {
    hvdc_trajectory trajectory;
    uint32_t weights; /* 1: follow */
    uint32_t slots;
    uint32_t blocks_per_call;
    uint64_t slot_bytes;
    uint64_t exchange_values; /* 0: none */
} hvdc_hello;

typedef struct hvdc_slot_offer {
    uint32_t slot;
} hvdc_slot_offer;

typedef struct hvdc_worker_ready {
    uint64_t engine_bytes;
    hvdc_weights_use weights;
} hvdc_worker_ready;

/* Blocks [from, to) of a video in a slot. */
typedef struct hvdc_assignment {
    uint32_t video, slot, from, to;
} hvdc_assignment;

typedef struct hvdc_handoff {
    hvdc_assignment done;
    uint64_t checksum; /* hvdc_slot_checksum at done.to */
} hvdc_handoff;

typedef struct hvdc_multiplied {
    hvdc_slice slice;
    uint32_t reserved;
    uint64_t start_ns, end_ns; /* hvdc_clock_ns */
} hvdc_multiplied;

_Static_assert(sizeof(hvdc_hello) <= HVDC_PAYLOAD_BYTES, "a message holds it");
_Static_assert(sizeof(hvdc_failure) <= HVDC_PAYLOAD_BYTES, "a message holds it");

#endif
