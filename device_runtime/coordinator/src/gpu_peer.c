#define _POSIX_C_SOURCE 200809L

#include "gpu_peer.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "hvdc/clock.h"

#define QUIT_TIMEOUT_S 5.0

static bool introduce(hvdc_gpu_peer *peer, const hvdc_stream *stream, const hvdc_slot *slots, uint32_t slot_count,
                      const hvdc_memory *exchange, double timeout_s, hvdc_failure *failure) {
    hvdc_message message;
    hvdc_hello hello = {.trajectory = stream->trajectory,
                        .weights = stream->weights != NULL,
                        .slots = slot_count,
                        .blocks_per_call = stream->options.blocks_per_call,
                        .slot_bytes = hvdc_slot_bytes(&stream->trajectory),
                        .exchange_values = exchange->data == NULL ? 0 : stream->partner->exchange.values};
    /* To one that has ended nothing can be said, but what it said before is still to be read: why it ended. */
    if (!hvdc_channel_send(&peer->channel, HVDC_SAY_HELLO, &hello, sizeof hello, -1, failure)) timeout_s = 0;
    if (!hvdc_channel_expect(&peer->channel, timeout_s, HVDC_SAY_WELCOME, 0, HVDC_SAY_NO, &message, failure))
        return false;
    if (stream->weights != NULL && !hvdc_shared_weights_send(stream->weights, peer->channel.socket, timeout_s, failure))
        return false;
    for (uint32_t i = 0; i < slot_count; i++) {
        hvdc_slot_offer offer = {.slot = i};
        if (!hvdc_channel_send(&peer->channel, HVDC_SAY_SLOT, &offer, sizeof offer, slots[i].memory.fd, failure))
            return false;
    }
    return exchange->data == NULL ||
           hvdc_channel_send(&peer->channel, HVDC_SAY_EXCHANGE, NULL, 0, exchange->fd, failure);
}

bool hvdc_gpu_peer_start(hvdc_gpu_peer *peer, const hvdc_stream *stream, const hvdc_slot *slots, uint32_t slot_count,
                         const hvdc_memory *exchange, double timeout_s, hvdc_failure *failure) {
    *peer = HVDC_NO_GPU_PEER;
    if (!hvdc_child_start(stream->options.worker_argv, HVDC_WORKER_FD, timeout_s, &peer->child, failure)) return false;
    peer->channel = hvdc_channel_on(peer->child.socket);
    peer->heard_ns = hvdc_clock_ns();
    return introduce(peer, stream, slots, slot_count, exchange, timeout_s, failure);
}

bool hvdc_gpu_peer_assign(hvdc_gpu_peer *peer, hvdc_assignment todo, hvdc_failure *failure) {
    if (peer->todo_count == 0) peer->heard_ns = hvdc_clock_ns(); /* it had nothing to say so far */
    peer->todo[peer->todo_count++] = todo; /* also if it cannot be told: then it is what was lost */
    if (hvdc_channel_send(&peer->channel, HVDC_SAY_ASSIGN, &todo, sizeof todo, -1, failure)) return true;
    /* If it has ended, then what it said before is still to be read: handoffs, and why it ended. */
    struct pollfd on = {.fd = peer->channel.socket, .events = POLLIN};
    return poll(&on, 1, 0) > 0;
}

static bool is_due(const hvdc_gpu_peer *peer, const hvdc_assignment *done) {
    const hvdc_assignment *due = &peer->todo[0];
    return peer->todo_count > 0 && memcmp(due, done, sizeof *due) == 0;
}

static enum hvdc_gpu_news_kind understand(hvdc_gpu_peer *peer, const hvdc_message *message, hvdc_gpu_news *news,
                                          hvdc_failure *failure) {
    hvdc_worker_ready ready;
    if (message->kind == HVDC_SAY_READY && message->bytes == sizeof ready) {
        memcpy(&ready, message->payload, sizeof ready);
        peer->engine_bytes = ready.engine_bytes;
        peer->weights = ready.weights;
        peer->weights.import[sizeof peer->weights.import - 1] = 0;
        return HVDC_GPU_READY;
    }
    if (message->kind == HVDC_SAY_SPAN && message->bytes == sizeof news->span) {
        memcpy(&news->span, message->payload, sizeof news->span);
        if (peer->todo_count > 0 && news->span.video == peer->todo[0].video && news->span.end_ns >= news->span.start_ns)
            return HVDC_GPU_SPAN;
    }
    if (message->kind == HVDC_SAY_HANDOFF && message->bytes == sizeof news->handoff) {
        memcpy(&news->handoff, message->payload, sizeof news->handoff);
        if (is_due(peer, &news->handoff.done)) {
            peer->todo_count--;
            memmove(peer->todo, peer->todo + 1, peer->todo_count * sizeof *peer->todo);
            return HVDC_GPU_HANDOFF;
        }
    }
    peer->ending = message->kind == HVDC_SAY_NO;
    if (peer->ending)
        (void)hvdc_channel_refusal(message, failure);
    else
        (void)hvdc_fail(failure, HVDC_FAILURE_PEER, "it sent message %u, which does not fit what it was told",
                        (unsigned)message->kind);
    return HVDC_GPU_LOST;
}

enum hvdc_gpu_news_kind hvdc_gpu_peer_news(hvdc_gpu_peer *peer, hvdc_gpu_news *news, hvdc_failure *failure) {
    hvdc_message message;
    enum hvdc_received got = hvdc_channel_receive(&peer->channel, 0, &message, failure);
    if (got == HVDC_RECEIVED_NOTHING) return news->kind = HVDC_GPU_SILENT;
    if (got != HVDC_RECEIVED_MESSAGE) return news->kind = HVDC_GPU_LOST;
    if (message.fd >= 0) (void)close(message.fd);
    peer->heard_ns = hvdc_clock_ns();
    return news->kind = understand(peer, &message, news, failure);
}

void hvdc_gpu_peer_kill(hvdc_gpu_peer *peer) {
    if (peer->child.pid > 0) (void)kill(peer->child.pid, SIGKILL);
}

bool hvdc_gpu_peer_end(hvdc_gpu_peer *peer, bool kindly, char *how, size_t how_bytes, hvdc_failure *failure) {
    if (peer->child.pid != 0 && kindly && peer->todo_count == 0)
        peer->ending = hvdc_channel_send(&peer->channel, HVDC_SAY_QUIT, NULL, 0, -1, NULL) || peer->ending;
    if (peer->ending) (void)hvdc_child_wait(&peer->child, QUIT_TIMEOUT_S, how, how_bytes);
    return hvdc_child_end(&peer->child, how, how_bytes, failure);
}
