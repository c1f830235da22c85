#define _GNU_SOURCE

#include "hvdc/channel.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hvdc/clock.h"
#include "sha256.h"

#define MAGIC 0x68766463u
#define DIGEST_BYTES 16u
#define SEND_TIMEOUT_S 10.0

typedef struct head {
    uint32_t magic, abi, kind, bytes;
    uint64_t number;
    uint8_t digest[DIGEST_BYTES]; /* of the head with zeros here, and the payload */
} head;

hvdc_channel hvdc_channel_on(int socket) { return (hvdc_channel){.socket = socket}; }

static void digest_of(const head *of, const void *payload, uint8_t digest[DIGEST_BYTES]) {
    head bare = *of;
    uint8_t whole[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    memset(bare.digest, 0, sizeof bare.digest);
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, &bare, sizeof bare);
    if (of->bytes > 0) hvdc_sha256_update(&sha, payload, of->bytes);
    hvdc_sha256_final(&sha, whole);
    memcpy(digest, whole, DIGEST_BYTES);
}

/* 1: ready; 0: not in time; -1: errno. */
static int wait_for(int socket, short events, double timeout_s) {
    uint64_t start = hvdc_clock_ns();
    for (;;) {
        double left_s = timeout_s - (double)(hvdc_clock_ns() - start) * 1e-9;
        int wait_ms = timeout_s < 0 ? -1 : left_s <= 0 ? 0 : left_s > 1e6 ? 1000000000 : (int)(left_s * 1e3) + 1;
        struct pollfd on = {.fd = socket, .events = events};
        int ready = poll(&on, 1, wait_ms);
        if (ready > 0) return 1;
        if (ready < 0 && errno != EINTR) return -1;
        if (ready == 0 && wait_ms >= 0 && left_s <= 1e6) return 0;
    }
}

bool hvdc_channel_send(hvdc_channel *channel, uint32_t kind, const void *payload, size_t bytes, int fd,
                       hvdc_failure *failure) {
    if (bytes > HVDC_PAYLOAD_BYTES)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "a message of %zu bytes is longer than any may be", bytes);
    head start = {.magic = MAGIC, .abi = HVDC_ABI, .kind = kind, .bytes = (uint32_t)bytes, .number = channel->sent};
    digest_of(&start, payload, start.digest);
    struct iovec parts[2] = {{&start, sizeof start}, {(void *)(uintptr_t)payload, bytes}};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = bytes > 0 ? 2 : 1};
    if (fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *with = CMSG_FIRSTHDR(&message);
        *with = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        with->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(with), &fd, sizeof fd);
    }
    for (;;) {
        if (sendmsg(channel->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            channel->sent++;
            return true;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process cannot be told anything: %s",
                             strerror(errno));
        if (wait_for(channel->socket, POLLOUT, SEND_TIMEOUT_S) <= 0)
            return hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process has read no message for %.0f s",
                             SEND_TIMEOUT_S);
    }
}

static enum hvdc_received damaged(hvdc_message *message, hvdc_failure *failure, const char *what) {
    if (message->fd >= 0) (void)close(message->fd);
    message->fd = -1;
    (void)hvdc_fail(failure, HVDC_FAILURE_PEER, "a message of the other process is damaged: %s", what);
    return HVDC_RECEIVED_DAMAGE;
}

static void take_descriptors(struct msghdr *from, hvdc_message *message) {
    for (struct cmsghdr *with = CMSG_FIRSTHDR(from); with != NULL; with = CMSG_NXTHDR(from, with)) {
        if (with->cmsg_level != SOL_SOCKET || with->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (with->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(with) + i * sizeof fd, sizeof fd);
            if (message->fd < 0)
                message->fd = fd;
            else
                (void)close(fd);
        }
    }
}

static enum hvdc_received check(hvdc_channel *channel, const head *start, size_t got, hvdc_message *message,
                                hvdc_failure *failure) {
    uint8_t digest[DIGEST_BYTES];
    if (got < sizeof *start) return damaged(message, failure, "it is shorter than any message");
    if (start->magic != MAGIC) return damaged(message, failure, "it does not start as messages do");
    if (start->abi != HVDC_ABI) {
        (void)damaged(message, failure, "");
        (void)hvdc_fail(failure, HVDC_FAILURE_PEER,
                        "the other process speaks ABI version %u and this one %u: both must come from one build",
                        (unsigned)start->abi, (unsigned)HVDC_ABI);
        return HVDC_RECEIVED_DAMAGE;
    }
    if (start->bytes > HVDC_PAYLOAD_BYTES || got != sizeof *start + start->bytes)
        return damaged(message, failure, "it has another length than it says");
    digest_of(start, message->payload, digest);
    if (memcmp(digest, start->digest, sizeof digest) != 0) return damaged(message, failure, "its digest is another");
    if (start->number != channel->received)
        return damaged(message, failure, "its number is not the next one: some were lost, repeated or swapped");
    channel->received++;
    message->kind = start->kind;
    message->bytes = start->bytes;
    return HVDC_RECEIVED_MESSAGE;
}

enum hvdc_received hvdc_channel_receive(hvdc_channel *channel, double timeout_s, hvdc_message *message,
                                        hvdc_failure *failure) {
    head start;
    bool was_reset = false;
    memset(message, 0, sizeof *message);
    message->fd = -1;
    for (;;) {
        int ready = wait_for(channel->socket, POLLIN, timeout_s);
        if (ready == 0) {
            (void)hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process has been silent for %.1f s", timeout_s);
            return HVDC_RECEIVED_NOTHING;
        }
        struct iovec parts[2] = {{&start, sizeof start}, {message->payload, HVDC_PAYLOAD_BYTES}};
        union {
            struct cmsghdr align;
            char space[CMSG_SPACE(4 * sizeof(int))];
        } control;
        struct msghdr in = {
            .msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t got = ready < 0 ? -1 : recvmsg(channel->socket, &in, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
        /* The other end closed without reading everything; what it sent before that comes next. */
        if (got < 0 && errno == ECONNRESET && !was_reset) {
            was_reset = true;
            continue;
        }
        if (got <= 0) {
            (void)hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process has closed its end%s%s", got < 0 ? ": " : "",
                            got < 0 ? strerror(errno) : "");
            return HVDC_RECEIVED_END;
        }
        take_descriptors(&in, message);
        if ((in.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
            return damaged(message, failure, "it is longer than any message");
        return check(channel, &start, (size_t)got, message, failure);
    }
}

bool hvdc_channel_refuse(hvdc_channel *channel, uint32_t kind, const hvdc_failure *why) {
    return hvdc_channel_send(channel, kind, why, sizeof *why, -1, NULL);
}

bool hvdc_channel_refusal(const hvdc_message *message, hvdc_failure *failure) {
    hvdc_failure said;
    if (message->bytes != sizeof said)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process refused without a reason");
    memcpy(&said, message->payload, sizeof said);
    said.message[sizeof said.message - 1] = 0;
    bool known = said.kind > HVDC_FAILURE_NONE && said.kind <= HVDC_FAILURE_FILE;
    return hvdc_fail(failure, known ? said.kind : HVDC_FAILURE_PEER, "%s", said.message);
}

bool hvdc_channel_expect(hvdc_channel *channel, double timeout_s, uint32_t kind, size_t bytes, uint32_t refusal,
                         hvdc_message *message, hvdc_failure *failure) {
    if (hvdc_channel_receive(channel, timeout_s, message, failure) != HVDC_RECEIVED_MESSAGE) return false;
    if (message->kind == kind && message->bytes >= bytes) return true;
    if (message->fd >= 0) (void)close(message->fd);
    message->fd = -1;
    if (message->kind == refusal) return hvdc_channel_refusal(message, failure);
    return hvdc_fail(failure, HVDC_FAILURE_PEER,
                     "the other process sent message %u of %u bytes where message %u of %zu was due",
                     (unsigned)message->kind, (unsigned)message->bytes, (unsigned)kind, bytes);
}
