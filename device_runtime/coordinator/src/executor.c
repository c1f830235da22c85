#include "executor.h"

#include <stdlib.h>
#include <string.h>

#include "hvdc/clock.h"

bool hvdc_executor_init(hvdc_executor *executor, hvdc_failure *failure) {
    const hvdc_trajectory *t = executor->trajectory;
    hvdc_executor_forget_texts(executor);
    executor->text = calloc((size_t)t->text_tokens * t->width, sizeof *executor->text);
    return executor->text != NULL ||
           hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a prompt of %u tokens", (unsigned)t->text_tokens);
}

void hvdc_executor_free(hvdc_executor *executor) {
    free(executor->text);
    executor->text = NULL;
}

void hvdc_executor_forget_texts(hvdc_executor *executor) {
    executor->given[0].there = executor->given[1].there = false;
}

typedef struct at {
    uint32_t video, position, count;
} at;

static bool tell(hvdc_executor *x, enum hvdc_lane lane, enum hvdc_activity activity, at where, uint64_t start_ns,
                 hvdc_failure *failure) {
    hvdc_span_of_time span = {.lane = lane,
                              .activity = activity,
                              .video = where.video,
                              .position = where.position,
                              .count = where.count,
                              .start_ns = start_ns,
                              .end_ns = hvdc_clock_ns()};
    return x->span(x->context, &span, failure);
}

static void digest_of_embeds(const hvdc_slot *slot, uint8_t digest[HVDC_SHA256_BYTES]) {
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, slot->embeds, (size_t)hvdc_embeds_bytes(slot->trajectory));
    hvdc_sha256_final(&sha, digest);
}

static bool give_text(hvdc_executor *x, const hvdc_slot *slot, uint32_t expert, at where, hvdc_failure *failure) {
    hvdc_text_given *given = &x->given[expert];
    uint8_t embeds[HVDC_SHA256_BYTES];
    if (given->there && given->video == where.video) return true;
    uint64_t start_ns = hvdc_clock_ns();
    digest_of_embeds(slot, embeds);
    if (given->there && memcmp(given->embeds, embeds, sizeof embeds) == 0) {
        given->video = where.video;
        return true;
    }
    given->there = false; /* what is half made is not used */
    if (!x->host.project_text(x->host.context, expert, slot->embeds, x->text, failure) ||
        !tell(x, HVDC_LANE_CPU, HVDC_DOES_PROJECT_TEXT, where, start_ns, failure))
        return false;
    start_ns = hvdc_clock_ns();
    if (!x->engine->set_text(x->engine, expert, x->text, failure) ||
        !tell(x, x->lane, HVDC_DOES_SET_TEXT, where, start_ns, failure))
        return false;
    *given = (hvdc_text_given){.there = true, .video = where.video};
    memcpy(given->embeds, embeds, sizeof embeds);
    return true;
}

static bool embed(hvdc_executor *x, hvdc_slot *slot, uint32_t step, at where, hvdc_failure *failure) {
    uint64_t start_ns = hvdc_clock_ns();
    return x->host.embed(x->host.context, hvdc_slot_latent(slot, step), slot->hidden, failure) &&
           tell(x, HVDC_LANE_CPU, HVDC_DOES_EMBED, where, start_ns, failure);
}

static bool advance(hvdc_executor *x, hvdc_slot *slot, uint32_t step, at where, hvdc_failure *failure) {
    uint64_t start_ns = hvdc_clock_ns();
    if (!x->host.advance(x->host.context, step, slot->hidden, hvdc_slot_latent(slot, step),
                         hvdc_slot_latent(slot, step + 1u), failure))
        return false;
    hvdc_slot_publish(slot, step + 1u);
    return tell(x, HVDC_LANE_CPU, HVDC_DOES_ADVANCE, where, start_ns, failure);
}

static bool run_blocks(hvdc_executor *x, hvdc_slot *slot, at where, hvdc_failure *failure) {
    uint32_t layers = x->trajectory->layers;
    uint64_t start_ns = hvdc_clock_ns();
    return x->engine->run(x->engine, where.position / layers, where.position % layers, where.count, slot->hidden,
                          failure) &&
           tell(x, x->lane, HVDC_DOES_BLOCKS, where, start_ns, failure);
}

enum hvdc_executed hvdc_execute(hvdc_executor *x, hvdc_slot *slot, uint32_t video, uint32_t from, uint32_t to,
                                hvdc_failure *failure) {
    uint32_t layers = x->trajectory->layers, per_call = x->blocks_per_call == 0 ? 1 : x->blocks_per_call;
    for (uint32_t position = from; position < to;) {
        if (x->cancelled != NULL && x->cancelled(x->context)) return HVDC_CANCELLED;
        uint32_t step = position / layers, block = position % layers, count = layers - block;
        if (count > per_call) count = per_call;
        if (count > to - position) count = to - position;
        at where = {.video = video, .position = position, .count = count};
        if (!give_text(x, slot, x->trajectory->experts[step], where, failure) ||
            (block == 0 && !embed(x, slot, step, where, failure)) || !run_blocks(x, slot, where, failure))
            return HVDC_NOT_EXECUTED;
        position += count;
        if (position % layers == 0 && !advance(x, slot, step, where, failure)) return HVDC_NOT_EXECUTED;
    }
    return HVDC_EXECUTED;
}
