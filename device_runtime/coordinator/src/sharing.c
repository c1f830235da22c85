#include "sharing.h"

#include <string.h>
#include <unistd.h>

#include "hvdc/clock.h"

static uint64_t input_bytes(uint64_t values) {
    uint64_t bytes = values * sizeof(uint16_t);
    return (bytes + HVDC_SLOT_ALIGN_BYTES - 1u) / HVDC_SLOT_ALIGN_BYTES * HVDC_SLOT_ALIGN_BYTES;
}

uint64_t hvdc_exchange_bytes(uint64_t values) { return input_bytes(values) + values * sizeof(float); }

hvdc_exchange hvdc_exchange_in(const hvdc_memory *memory, uint64_t values) {
    return (hvdc_exchange){.values = values,
                           .input = (uint16_t *)(void *)memory->data,
                           .output = (float *)(void *)(memory->data + input_bytes(values))};
}

void hvdc_sharing_lose(hvdc_sharing *sharing) {
    sharing->lost = true;
    sharing->partner->share = 0.0;
}

static bool lose(hvdc_sharing *sharing) {
    hvdc_sharing_lose(sharing);
    return false;
}

static bool begin(void *context, const hvdc_slice *slice, hvdc_failure *failure) {
    hvdc_sharing *sharing = context;
    sharing->slice = *slice;
    return hvdc_channel_send(sharing->channel, HVDC_SAY_MULTIPLY, slice, sizeof *slice, -1, failure) || lose(sharing);
}

/* An answer that fits what was asked. */
static bool receive(hvdc_sharing *sharing, hvdc_multiplied *done, hvdc_failure *failure) {
    hvdc_message message;
    if (!hvdc_channel_expect(sharing->channel, sharing->timeout_s, HVDC_SAY_MULTIPLIED, sizeof *done, HVDC_SAY_NO,
                             &message, failure))
        return false;
    if (message.fd >= 0) (void)close(message.fd);
    memcpy(done, message.payload, sizeof *done);
    return (message.bytes == sizeof *done && memcmp(&done->slice, &sharing->slice, sizeof done->slice) == 0 &&
            done->end_ns >= done->start_ns) ||
           hvdc_fail(failure, HVDC_FAILURE_PEER, "it answers for another slice of a linear than it was asked for");
}

static bool finish(void *context, hvdc_failure *failure) {
    hvdc_sharing *sharing = context;
    hvdc_multiplied done;
    hvdc_span_of_time span = {.lane = HVDC_LANE_HANDOFF,
                              .activity = HVDC_DOES_JOIN,
                              .video = sharing->video,
                              .position = sharing->slice.step * sharing->layers + sharing->slice.block,
                              .count = 1,
                              .start_ns = hvdc_clock_ns()};
    atomic_store(sharing->owes_since_ns, 0);
    const bool received = receive(sharing, &done, failure);
    atomic_store(sharing->owes_since_ns, hvdc_clock_ns());
    if (!received) return lose(sharing);
    span.end_ns = hvdc_clock_ns();
    if (!sharing->span(sharing->context, &span, failure)) return false; /* that is no fault of the worker's */
    span.lane = HVDC_LANE_GPU;
    span.activity = HVDC_DOES_SLICE;
    span.start_ns = done.start_ns;
    span.end_ns = done.end_ns;
    return sharing->span(sharing->context, &span, failure);
}

void hvdc_sharing_bind(hvdc_sharing *sharing, double share, hvdc_exchange exchange) {
    hvdc_partner *partner = sharing->partner;
    partner->exchange = exchange;
    partner->context = sharing;
    partner->finish = finish;
    partner->begin = begin;
    partner->share = share;
}

void hvdc_sharing_unbind(hvdc_sharing *sharing) {
    hvdc_partner *partner = sharing->partner;
    if (partner == NULL) return;
    partner->share = 0.0;
    partner->begin = NULL;
    partner->exchange = (hvdc_exchange){.values = partner->exchange.values};
}
