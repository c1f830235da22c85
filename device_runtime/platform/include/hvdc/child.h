/* A program in a process of its own, which never outlives its parent. */
#ifndef HVDC_CHILD_H
#define HVDC_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_child {
    pid_t pid;  /* 0: none */
    int socket; /* this end of a SOCK_SEQPACKET pair; -1: none */
} hvdc_child;

#define HVDC_NO_CHILD ((hvdc_child){.pid = 0, .socket = -1})

/* Starts argv[0], a path, with the other end of the pair as descriptor `fd`. Of this process's descriptors it gets
 * stderr beside, also as its stdout: what a driver prints is not this program's answer. It ignores SIGINT
 * and SIGTERM. The kernel kills it when the thread that called this ends, however that comes: call it from a thread that
 * lives as long as the child is needed. A program that has not begun within `timeout_s` is killed, and a failure. */
bool hvdc_child_start(char *const *argv, int fd, double timeout_s, hvdc_child *child, hvdc_failure *failure);

/* Waits until it has ended by itself; false if it has not within the time. Fills `how` (may be NULL) with how it ended:
 * "it ended with status 1", "it was killed by signal 9". */
bool hvdc_child_wait(hvdc_child *child, double timeout_s, char *how, size_t how_bytes);

/* Kills and reaps it, unless it has ended already, and closes the socket. A process that the kernel does not let go
 * within 10 s is a failure: it may still write shared memory. Safe to call for none. */
bool hvdc_child_end(hvdc_child *child, char *how, size_t how_bytes, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
