/* A video's state in shared memory: the one thing that both engines work on.
 *
 * The running latent is there twice. Before step s it is latent[s % 2], and the step writes the other one; only then
 * `steps_done` becomes s + 1. Whenever a process dies, latent[steps_done % 2] is whole. */
#ifndef HVDC_SLOT_H
#define HVDC_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hvdc/coordinator.h"
#include "hvdc/shared_memory.h"

typedef struct hvdc_boundary {
    uint64_t step;     /* the latent is the one before this step */
    uint64_t checksum; /* of the latent */
} hvdc_boundary;

/* At the start of the shared memory; what is behind it starts at multiples of HVDC_SLOT_ALIGN_BYTES. */
typedef struct hvdc_slot_head {
    _Atomic uint64_t steps_done;
    hvdc_boundary boundary[2];
} hvdc_slot_head;

#define HVDC_SLOT_ALIGN_BYTES 4096u

typedef struct hvdc_slot {
    hvdc_memory memory;
    const hvdc_trajectory *trajectory;
    hvdc_slot_head *head;
    float *latent[2]; /* [tokens][latent_values] */
    float *embeds;    /* [text_tokens][text_width] */
    float *hidden;    /* [tokens][width] */
} hvdc_slot;

/* Fails for sizes that no model has. */
bool hvdc_trajectory_check(const hvdc_trajectory *trajectory, hvdc_failure *failure);

uint32_t hvdc_executions(const hvdc_trajectory *trajectory);
uint64_t hvdc_latent_bytes(const hvdc_trajectory *trajectory);
uint64_t hvdc_embeds_bytes(const hvdc_trajectory *trajectory);
uint64_t hvdc_slot_bytes(const hvdc_trajectory *trajectory);

/* The slot in `memory`, which has hvdc_slot_bytes; the trajectory outlives it. */
hvdc_slot hvdc_slot_in(hvdc_memory memory, const hvdc_trajectory *trajectory);

/* latent[0] and embeds are filled in: a video starts. */
void hvdc_slot_begin(hvdc_slot *slot);

/* The latent before a step; after the last one, the final latent. */
float *hvdc_slot_latent(const hvdc_slot *slot, uint32_t step);

/* The latent before `step` is whole. */
void hvdc_slot_publish(hvdc_slot *slot, uint32_t step);

/* The last step whose latent is whole; false if what is there contradicts itself. */
bool hvdc_slot_boundary(const hvdc_slot *slot, uint32_t *step);

/* Of everything that a resumption at `position` reads: the latent, and inside a step the hidden state. */
uint64_t hvdc_slot_checksum(const hvdc_slot *slot, uint32_t position);

#endif
