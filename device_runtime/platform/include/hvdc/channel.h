/* Messages between the two processes, over a SOCK_SEQPACKET socket: each arrives whole or not at all, and a damaged,
 * lost, repeated or cut one is noticed: every message is numbered and carries its length and a digest.
 *
 * Both ends run on one machine, so that numbers have its byte order; they must be of the same HVDC_ABI. */
#ifndef HVDC_CHANNEL_H
#define HVDC_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a message, its order, or what a slot of shared memory holds does. */
#define HVDC_ABI 3u

#define HVDC_PAYLOAD_BYTES 1536u

typedef struct hvdc_channel {
    int socket;
    uint64_t sent, received; /* messages */
} hvdc_channel;

/* `payload` holds `bytes` bytes, the rest is zero; a text ends with a zero byte whatever was sent. */
typedef struct hvdc_message {
    uint32_t kind;
    uint32_t bytes;
    int fd; /* the receiver's to close; -1: none came */
    uint8_t payload[HVDC_PAYLOAD_BYTES + 1u];
} hvdc_message;

enum hvdc_received {
    HVDC_RECEIVED_MESSAGE = 0,
    HVDC_RECEIVED_NOTHING, /* in the time given */
    HVDC_RECEIVED_END,     /* the other end is closed */
    HVDC_RECEIVED_DAMAGE   /* not what the other end can have sent; the channel is of no use any more */
};

hvdc_channel hvdc_channel_on(int socket);

/* Sends one message, with a descriptor unless `fd` is negative. Waits at most 10 s for room. */
bool hvdc_channel_send(hvdc_channel *channel, uint32_t kind, const void *payload, size_t bytes, int fd,
                       hvdc_failure *failure);

/* Takes one message; 0 s: only one that is there, negative: wait for ever. All but MESSAGE say so in `failure`. */
enum hvdc_received hvdc_channel_receive(hvdc_channel *channel, double timeout_s, hvdc_message *message,
                                        hvdc_failure *failure);

/* A failure as a message of this kind, and what such a message says. The second one always returns false. */
bool hvdc_channel_refuse(hvdc_channel *channel, uint32_t kind, const hvdc_failure *why);
bool hvdc_channel_refusal(const hvdc_message *message, hvdc_failure *failure);

/* One message of this kind and of at least this size. Anything else is a failure; that of a message of kind `refusal` is
 * what the other end said. */
bool hvdc_channel_expect(hvdc_channel *channel, double timeout_s, uint32_t kind, size_t bytes, uint32_t refusal,
                         hvdc_message *message, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
