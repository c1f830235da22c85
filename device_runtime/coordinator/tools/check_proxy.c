#define _GNU_SOURCE

#include "check_proxy.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hvdc/child.h"
#include "hvdc/coordinator.h"

#define ROOM 8192

typedef struct packet {
    char data[ROOM];
    size_t bytes;
    int fd;
} packet;

typedef struct fault {
    char how[16], from[16];
    unsigned number;
} fault;

static bool take(int socket, packet *in) {
    struct iovec part = {in->data, sizeof in->data};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    in->bytes = (size_t)got;
    in->fd = -1;
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    if (with != NULL && with->cmsg_type == SCM_RIGHTS) memcpy(&in->fd, CMSG_DATA(with), sizeof in->fd);
    return true;
}

static bool give(int socket, const packet *out) {
    struct iovec part = {(void *)(uintptr_t)out->data, out->bytes};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (out->fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *with = CMSG_FIRSTHDR(&message);
        *with = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        with->cmsg_len = CMSG_LEN(sizeof out->fd);
        memcpy(CMSG_DATA(with), &out->fd, sizeof out->fd);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) >= 0;
}

/* Passes on one message, or two where the second one goes first. */
static bool pass(int from, int to, const char *name, unsigned *count, const fault *f) {
    static packet one, two;
    if (!take(from, &one)) return false;
    bool hit = strcmp(f->from, name) == 0 && (*count)++ == f->number, passed = true;
    const char *how = hit ? f->how : "";
    if (strcmp(how, "flip") == 0) one.data[one.bytes / 2] = (char)(one.data[one.bytes / 2] ^ 4);
    if (strcmp(how, "truncate") == 0) one.bytes -= one.bytes / 3;
    if (strcmp(how, "empty") == 0) one.bytes = 1;
    if (strcmp(how, "lengthen") == 0) {
        memset(one.data + one.bytes, 7, sizeof one.data - one.bytes);
        one.bytes = sizeof one.data;
    }
    if (strcmp(how, "close") == 0) passed = false;
    if (strcmp(how, "swap") == 0) {
        passed = take(from, &two) && give(to, &two);
        if (two.fd >= 0) (void)close(two.fd);
    }
    if (passed && strcmp(how, "drop") != 0) passed = give(to, &one);
    if (passed && strcmp(how, "repeat") == 0) passed = give(to, &one);
    if (one.fd >= 0) (void)close(one.fd);
    return passed;
}

int check_proxy(const char *text, char *const *argv) {
    fault f;
    hvdc_child child;
    hvdc_failure failure;
    unsigned from_owner = 0, from_worker = 0;
    /* NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion): nine digits fit */
    if (sscanf(text, "%15[a-z]:%15[a-z]:%9u", f.how, f.from, &f.number) != 3 ||
        !hvdc_child_start(argv, HVDC_WORKER_FD, 20.0, &child, &failure))
        return 1;
    bool both = true;
    while (both) {
        struct pollfd on[2] = {{.fd = HVDC_WORKER_FD, .events = POLLIN}, {.fd = child.socket, .events = POLLIN}};
        if (poll(on, 2, -1) < 0) continue;
        if (on[1].revents != 0) both = pass(child.socket, HVDC_WORKER_FD, "worker", &from_worker, &f);
        if (both && on[0].revents != 0) both = pass(HVDC_WORKER_FD, child.socket, "owner", &from_owner, &f);
    }
    (void)hvdc_child_end(&child, NULL, 0, &failure);
    return 0;
}
