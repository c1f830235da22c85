/* The worker's side of a stream: one engine, told what to do. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hvdc/clock.h"
#include "sharing.h"

/* The owner's death is the kernel's to tell (hvdc/child.h), so that waiting for it takes for ever. */
#define FOR_EVER (-1.0)

typedef struct serving {
    const hvdc_worker *worker;
    hvdc_channel channel;
    hvdc_hello hello;
    hvdc_shared_weights *weights;
    hvdc_slot slots[HVDC_SLOTS_MAX];
    uint32_t attached;
    hvdc_memory exchange_memory;
    hvdc_exchange exchange;
    hvdc_executor executor;
} serving;

static bool same_trajectory(const hvdc_trajectory *theirs, const hvdc_trajectory *ours, hvdc_failure *failure) {
    return memcmp(theirs, ours, sizeof *ours) == 0 ||
           hvdc_fail(
               failure, HVDC_FAILURE_USAGE,
               "the owner's stream has %u x %u blocks and %u tokens of %u, and the worker's artifact %u x %u and %u "
               "of %u, or other experts: start both with the same artifact",
               (unsigned)theirs->steps, (unsigned)theirs->layers, (unsigned)theirs->tokens, (unsigned)theirs->width,
               (unsigned)ours->steps, (unsigned)ours->layers, (unsigned)ours->tokens, (unsigned)ours->width);
}

static bool greet(serving *s, hvdc_failure *failure) {
    hvdc_message message;
    if (!hvdc_channel_expect(&s->channel, FOR_EVER, HVDC_SAY_HELLO, sizeof s->hello, HVDC_SAY_NO, &message, failure))
        return false;
    memcpy(&s->hello, message.payload, sizeof s->hello);
    if (!same_trajectory(&s->hello.trajectory, &s->worker->trajectory, failure)) return false;
    if (s->hello.slots == 0 || s->hello.slots > HVDC_SLOTS_MAX ||
        s->hello.slot_bytes != hvdc_slot_bytes(&s->worker->trajectory))
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner offers %u slots of %" PRIu64 " bytes, which cannot be",
                         (unsigned)s->hello.slots, s->hello.slot_bytes);
    if ((s->hello.weights != 0) != (s->worker->artifact != NULL))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the owner has %s weights and the worker has %s artifact",
                         s->hello.weights != 0 ? "" : "no", s->worker->artifact != NULL ? "an" : "no");
    if (s->hello.exchange_values != 0 && s->worker->multiply == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "this worker computes no slices of linears");
    return hvdc_channel_send(&s->channel, HVDC_SAY_WELCOME, NULL, 0, -1, failure);
}

static bool take_slots(serving *s, hvdc_failure *failure) {
    for (; s->attached < s->hello.slots; s->attached++) {
        hvdc_message message;
        hvdc_slot_offer offer;
        hvdc_memory memory;
        if (!hvdc_channel_expect(&s->channel, FOR_EVER, HVDC_SAY_SLOT, sizeof offer, HVDC_SAY_NO, &message, failure))
            return false;
        memcpy(&offer, message.payload, sizeof offer);
        if (message.fd < 0 || offer.slot != s->attached) {
            if (message.fd >= 0) (void)close(message.fd);
            return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner passed slot %u %s", (unsigned)offer.slot,
                             message.fd < 0 ? "without its memory" : "out of turn");
        }
        if (!hvdc_memory_import(message.fd, s->hello.slot_bytes, false, &memory, failure)) return false;
        s->slots[s->attached] = hvdc_slot_in(memory, &s->worker->trajectory);
    }
    return true;
}

static bool take_exchange(serving *s, hvdc_failure *failure) {
    hvdc_message message;
    uint64_t values = s->hello.exchange_values;
    if (values == 0) return true;
    if (!hvdc_channel_expect(&s->channel, FOR_EVER, HVDC_SAY_EXCHANGE, 0, HVDC_SAY_NO, &message, failure)) return false;
    if (message.fd < 0) return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner passed an exchange without its memory");
    if (!hvdc_memory_import(message.fd, hvdc_exchange_bytes(values), false, &s->exchange_memory, failure)) return false;
    s->exchange = hvdc_exchange_in(&s->exchange_memory, values);
    return true;
}

static bool say_span(void *context, const hvdc_span_of_time *span, hvdc_failure *failure) {
    return hvdc_channel_send(context, HVDC_SAY_SPAN, span, sizeof *span, -1, failure);
}

static bool open_engine(serving *s, hvdc_failure *failure) {
    const hvdc_weights *view = s->weights == NULL ? NULL : hvdc_shared_weights_view(s->weights);
    s->executor = (hvdc_executor){.trajectory = &s->worker->trajectory,
                                  .lane = HVDC_LANE_GPU,
                                  .blocks_per_call = s->hello.blocks_per_call,
                                  .context = &s->channel,
                                  .span = say_span};
    if (!s->worker->open(s->worker->context, view, &s->executor.engine, &s->executor.host, failure) ||
        !hvdc_executor_init(&s->executor, failure))
        return false;
    hvdc_worker_ready ready = {.engine_bytes = s->executor.engine->memory_bytes(s->executor.engine)};
    if (s->worker->weights_use != NULL) ready.weights = s->worker->weights_use(s->executor.engine);
    return hvdc_channel_send(&s->channel, HVDC_SAY_READY, &ready, sizeof ready, -1, failure);
}

static bool work(serving *s, const hvdc_message *message, hvdc_failure *failure) {
    hvdc_assignment todo;
    if (message->bytes != sizeof todo)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "an assignment of the owner has %u bytes",
                         (unsigned)message->bytes);
    memcpy(&todo, message->payload, sizeof todo);
    if (todo.slot >= s->attached || todo.from >= todo.to || todo.to > hvdc_executions(&s->worker->trajectory))
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner assigned blocks %u to %u in slot %u, which cannot be",
                         (unsigned)todo.from, (unsigned)todo.to, (unsigned)todo.slot);
    hvdc_slot *slot = &s->slots[todo.slot];
    if (hvdc_execute(&s->executor, slot, todo.video, todo.from, todo.to, failure) != HVDC_EXECUTED) return false;
    hvdc_handoff handoff = {.done = todo, .checksum = hvdc_slot_checksum(slot, todo.to)};
    return hvdc_channel_send(&s->channel, HVDC_SAY_HANDOFF, &handoff, sizeof handoff, -1, failure);
}

static bool multiply(serving *s, const hvdc_message *message, hvdc_failure *failure) {
    hvdc_multiplied done = {.start_ns = hvdc_clock_ns()};
    if (message->bytes != sizeof done.slice || s->exchange.values == 0)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner asked for a slice of %u bytes, which cannot be",
                         (unsigned)message->bytes);
    memcpy(&done.slice, message->payload, sizeof done.slice);
    if (!s->worker->multiply(s->executor.engine, &done.slice, &s->exchange, failure)) return false;
    done.end_ns = hvdc_clock_ns();
    return hvdc_channel_send(&s->channel, HVDC_SAY_MULTIPLIED, &done, sizeof done, -1, failure);
}

static bool serve(serving *s, hvdc_failure *failure) {
    if (!greet(s, failure)) return false;
    if (s->worker->artifact != NULL &&
        !hvdc_shared_weights_receive(s->worker->artifact, s->channel.socket, 0, &s->weights, failure))
        return false;
    if (!take_slots(s, failure) || !take_exchange(s, failure) || !open_engine(s, failure)) return false;
    for (;;) {
        hvdc_message message;
        if (hvdc_channel_receive(&s->channel, FOR_EVER, &message, failure) != HVDC_RECEIVED_MESSAGE) return false;
        if (message.fd >= 0) (void)close(message.fd);
        if (message.kind == HVDC_SAY_QUIT) return true;
        if (message.kind != HVDC_SAY_ASSIGN && message.kind != HVDC_SAY_MULTIPLY)
            return hvdc_fail(failure, HVDC_FAILURE_PEER, "the owner sent message %u where an assignment was due",
                             (unsigned)message.kind);
        if (!(message.kind == HVDC_SAY_ASSIGN ? work : multiply)(s, &message, failure)) return false;
    }
}

int hvdc_worker_serve(const hvdc_worker *worker) {
    serving s = {.worker = worker, .channel = hvdc_channel_on(HVDC_WORKER_FD), .exchange_memory = HVDC_NO_MEMORY};
    hvdc_failure why = {.kind = HVDC_FAILURE_NONE};
    bool served = hvdc_trajectory_check(&worker->trajectory, &why) && serve(&s, &why);
    if (!served) {
        (void)hvdc_channel_refuse(&s.channel, HVDC_SAY_NO, &why); /* if the owner still listens */
        (void)fprintf(stderr, "worker: %s\n", why.message);
    }
    hvdc_engine_close(s.executor.engine);
    hvdc_executor_free(&s.executor);
    for (uint32_t i = 0; i < s.attached; i++) hvdc_memory_unmap(&s.slots[i].memory);
    if (s.exchange_memory.data != NULL) hvdc_memory_unmap(&s.exchange_memory);
    hvdc_shared_weights_close(s.weights);
    (void)close(HVDC_WORKER_FD);
    return served ? 0 : 1;
}
