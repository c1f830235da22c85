#include "slot.h"

#include <string.h>

#define TOKENS_MAX (1u << 24)
#define WIDTH_MAX (1u << 16)

hvdc_trajectory hvdc_trajectory_of(const hvdc_artifact *artifact) {
    const hvdc_geometry *g = hvdc_artifact_geometry(artifact);
    hvdc_trajectory of = {
        .steps = g->steps,
        .layers = g->layers,
        .tokens = g->tokens,
        .width = g->width,
        .latent_values = g->patch[0] * g->patch[1] * g->patch[2] * g->out_channels,
        .text_tokens = g->text_tokens,
        .text_width = g->text_width,
    };
    for (uint32_t i = 0; i < g->steps && i < HVDC_STEPS_MAX; i++)
        of.experts[i] = (uint8_t)hvdc_artifact_step(artifact, i)->expert;
    return of;
}

bool hvdc_trajectory_check(const hvdc_trajectory *t, hvdc_failure *failure) {
    if (t->steps == 0 || t->steps > HVDC_STEPS_MAX || t->layers == 0 || t->layers > WIDTH_MAX)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "%u steps of %u blocks are no trajectory: there must be 1 to %u steps of 1 to %u blocks",
                         (unsigned)t->steps, (unsigned)t->layers, HVDC_STEPS_MAX, WIDTH_MAX);
    if (t->tokens == 0 || t->tokens > TOKENS_MAX || t->text_tokens == 0 || t->text_tokens > TOKENS_MAX ||
        t->width == 0 || t->width > WIDTH_MAX || t->latent_values == 0 || t->latent_values > WIDTH_MAX ||
        t->text_width == 0 || t->text_width > WIDTH_MAX)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "%u tokens of %u and %u values with %u text tokens of %u are no size of a model",
                         (unsigned)t->tokens, (unsigned)t->width, (unsigned)t->latent_values, (unsigned)t->text_tokens,
                         (unsigned)t->text_width);
    for (uint32_t i = 0; i < t->steps; i++)
        if (t->experts[i] > HVDC_EXPERT_DETAIL)
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "step %u has expert %u, and there are two", (unsigned)i,
                             (unsigned)t->experts[i]);
    return true;
}

uint32_t hvdc_executions(const hvdc_trajectory *t) { return t->steps * t->layers; }

static uint64_t floats(uint32_t rows, uint32_t columns) { return (uint64_t)rows * columns * sizeof(float); }

uint64_t hvdc_latent_bytes(const hvdc_trajectory *t) { return floats(t->tokens, t->latent_values); }

uint64_t hvdc_embeds_bytes(const hvdc_trajectory *t) { return floats(t->text_tokens, t->text_width); }

static uint64_t aligned(uint64_t bytes) {
    return (bytes + HVDC_SLOT_ALIGN_BYTES - 1u) / HVDC_SLOT_ALIGN_BYTES * HVDC_SLOT_ALIGN_BYTES;
}

uint64_t hvdc_slot_bytes(const hvdc_trajectory *t) {
    return aligned(sizeof(hvdc_slot_head)) + 2u * aligned(hvdc_latent_bytes(t)) + aligned(hvdc_embeds_bytes(t)) +
           aligned(floats(t->tokens, t->width));
}

hvdc_slot hvdc_slot_in(hvdc_memory memory, const hvdc_trajectory *t) {
    uint8_t *latent = memory.data + aligned(sizeof(hvdc_slot_head)), *other = latent + aligned(hvdc_latent_bytes(t));
    uint8_t *embeds = other + aligned(hvdc_latent_bytes(t)), *hidden = embeds + aligned(hvdc_embeds_bytes(t));
    return (hvdc_slot){
        .memory = memory,
        .trajectory = t,
        .head = (hvdc_slot_head *)(void *)memory.data,
        .latent = {(float *)(void *)latent, (float *)(void *)other},
        .embeds = (float *)(void *)embeds,
        .hidden = (float *)(void *)hidden,
    };
}

float *hvdc_slot_latent(const hvdc_slot *slot, uint32_t step) { return slot->latent[step % 2u]; }

#define LANES_BYTES 32u

/* Notices memory that is stale, torn or overwritten; no protection against intent. Four lanes, because one
 * multiplication waits for the one before it. */
static uint64_t checksum(uint64_t seed, const void *data, uint64_t bytes) {
    const uint64_t prime = 0x9e3779b97f4a7c15u;
    uint64_t lanes[4] = {seed, seed ^ 1u, seed ^ 2u, seed ^ 3u};
    const uint8_t *at = data;
    for (; bytes >= LANES_BYTES; at += LANES_BYTES, bytes -= LANES_BYTES) {
        uint64_t words[4];
        memcpy(words, at, sizeof words);
        for (int i = 0; i < 4; i++) {
            uint64_t mixed = (lanes[i] ^ words[i]) * prime;
            lanes[i] = mixed << 29 | mixed >> 35;
        }
    }
    uint64_t rest[4] = {0};
    memcpy(rest, at, (size_t)bytes);
    uint64_t sum = bytes;
    for (int i = 0; i < 4; i++) sum = (sum ^ (sum >> 31) ^ lanes[i] ^ (rest[i] * prime)) * prime;
    return sum ^ sum >> 29;
}

static uint64_t latent_checksum(const hvdc_slot *slot, uint32_t step) {
    return checksum(step, hvdc_slot_latent(slot, step), hvdc_latent_bytes(slot->trajectory));
}

void hvdc_slot_begin(hvdc_slot *slot) {
    slot->head->boundary[1] = (hvdc_boundary){.step = UINT64_MAX};
    hvdc_slot_publish(slot, 0);
}

void hvdc_slot_publish(hvdc_slot *slot, uint32_t step) {
    slot->head->boundary[step % 2u] = (hvdc_boundary){.step = step, .checksum = latent_checksum(slot, step)};
    atomic_store_explicit(&slot->head->steps_done, step, memory_order_release);
}

bool hvdc_slot_boundary(const hvdc_slot *slot, uint32_t *step) {
    uint64_t done = atomic_load_explicit(&slot->head->steps_done, memory_order_acquire);
    if (done > slot->trajectory->steps) return false;
    *step = (uint32_t)done;
    hvdc_boundary boundary = slot->head->boundary[done % 2u];
    return boundary.step == done && boundary.checksum == latent_checksum(slot, *step);
}

uint64_t hvdc_slot_checksum(const hvdc_slot *slot, uint32_t position) {
    const hvdc_trajectory *t = slot->trajectory;
    uint64_t sum = latent_checksum(slot, position / t->layers);
    return position % t->layers == 0 ? sum : checksum(sum, slot->hidden, floats(t->tokens, t->width));
}
