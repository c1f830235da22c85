/* Shared memory, processes and messages, for tests. Each command prints what it found, one line a fact.
 *
 *     kinds                     the kinds of shared memory of this build, and the one that was chosen
 *     seal                      what can still be done to memory after it was sealed
 *     load ARTIFACT [KIB]       shares an artifact's weights, with a limit
 *     share ARTIFACT OTHER [LIE]   passes them to a child that has opened OTHER; with a lie of lies.c. Prints both
 *                               processes' ids and waits for stdin to end before it gives them back
 *     reader ARTIFACT           that child
 *     child PROGRAM ARG…        starts a child and says how it ended
 *     stopped PROGRAM ARG…      starts one that is stopped before its program begins
 *     available ROOT            bytes of memory that are available by ROOT/proc and ROOT/sys
 *     channel                   reads "make KIND HEX" and "take HEX" lines: messages as bytes, and bytes as messages */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hvdc/channel.h"
#include "hvdc/child.h"
#include "hvdc/shared_memory.h"
#include "lies.h"
#include "memory_available.h"

#define READER_FD 3
#define START_S 20.0

static bool stops; /* the program of a child does not begin */

/* Takes the place of the C library's in this program. */
int execv(const char *path, char *const argv[]) {
    if (stops) (void)raise(SIGSTOP);
    return execve(path, argv, environ);
}

static int say_failure(const hvdc_failure *failure) {
    (void)printf("failure %d %s\n", (int)failure->kind, failure->message);
    (void)fflush(stdout);
    return 1;
}

static int kinds(void) {
    hvdc_failure failure;
    for (const hvdc_memory_kind *const *kind = hvdc_memory_kinds(); *kind != NULL; kind++)
        (void)printf("kind %s %s\n", (*kind)->name, hvdc_memory_probe(*kind, &failure) ? "works" : failure.message);
    const hvdc_memory_kind *chosen = hvdc_memory_choose(&failure);
    if (chosen == NULL) return say_failure(&failure);
    (void)printf("chosen %s\n", chosen->name);
    return 0;
}

static void say_outcome(const char *what, bool worked) {
    (void)printf("%s %s\n", what, worked ? "worked" : strerror(errno));
}

static bool maps_writable(int fd, uint64_t bytes) {
    if (bytes == 0) return false;
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return false;
    (void)munmap(at, (size_t)bytes);
    return true;
}

static int seal(void) {
    hvdc_failure failure;
    hvdc_memory memory;
    const hvdc_memory_kind *kind = hvdc_memory_choose(&failure);
    if (kind == NULL || !kind->create("hvdc:test", 8192, &memory, &failure)) return say_failure(&failure);
    memset(memory.data, 42, 8192);
    if (!hvdc_memory_seal(kind, &memory, &failure)) return say_failure(&failure);
    (void)printf("value %d\n", memory.data[8191]);
    say_outcome("write", pwrite(memory.fd, "x", 1, 0) == 1);
    say_outcome("map", maps_writable(memory.fd, 8192));
    say_outcome("protect", mprotect(memory.data, 8192, PROT_READ | PROT_WRITE) == 0);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory.fd);
    int again = open(path, O_RDWR | O_CLOEXEC); /* root may; the seals hold for everybody */
    say_outcome("write-again", again >= 0 && pwrite(again, "x", 1, 0) == 1);
    say_outcome("map-again", again >= 0 && maps_writable(again, 8192));
    say_outcome("shrink", again >= 0 && ftruncate(again, 4096) == 0);
    say_outcome("grow", again >= 0 && ftruncate(again, 16384) == 0);
    say_outcome("unseal", again >= 0 && fcntl(again, F_ADD_SEALS, 0) == 0);
    if (again >= 0) (void)close(again);
    kind->close(&memory);
    return 0;
}

/* Whether every file is as the artifact has it, through the view that an engine reads. */
static bool same_bytes(const hvdc_weights *view, unsigned *shared_files, bool *writable) {
    bool same = true;
    for (uint32_t i = 0; i < hvdc_artifact_file_count(view->artifact); i++) {
        hvdc_span span;
        if (view->files[i] == NULL || !hvdc_artifact_file_span(view->artifact, i, &span)) continue;
        (*shared_files)++;
        same = same && memcmp(view->files[i], span.data, (size_t)span.bytes) == 0;
        *writable = *writable || maps_writable(view->fds[i], span.bytes);
    }
    return same;
}

static void say_shared(const char *who, const hvdc_shared_weights *shared) {
    unsigned files = 0;
    bool writable = false, same = same_bytes(hvdc_shared_weights_view(shared), &files, &writable);
    (void)printf("%s %d %s %s %u %llu %s\n", who, (int)getpid(), same ? "same" : "different",
                 writable ? "writable" : "read-only", files, (unsigned long long)hvdc_shared_weights_bytes(shared),
                 hvdc_shared_weights_kind(shared));
    (void)fflush(stdout);
}

static bool open_artifact(const char *path, hvdc_artifact **artifact, hvdc_failure *failure) {
    hvdc_error error;
    return hvdc_artifact_open(path, artifact, &error) == HVDC_E_OK ||
           hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "%s: %s", error.file, error.message);
}

static int load(const char *path, const char *kib) {
    hvdc_failure failure;
    hvdc_artifact *artifact = NULL;
    hvdc_shared_weights *shared = NULL;
    uint64_t limit = kib == NULL ? 0 : strtoull(kib, NULL, 10) << 10;
    bool loaded =
        open_artifact(path, &artifact, &failure) && hvdc_shared_weights_load(artifact, limit, &shared, &failure);
    if (loaded) say_shared("loaded", shared);
    hvdc_shared_weights_close(shared);
    hvdc_artifact_close(artifact);
    return loaded ? 0 : say_failure(&failure);
}

static void wait_for_stdin(void) {
    char line[16];
    while (read(STDIN_FILENO, line, sizeof line) > 0) continue;
}

static int share(char *path, char *other, const char *lie) {
    static char self[] = "/proc/self/exe", role[] = "reader";
    char *const arguments[] = {self, role, other, NULL};
    hvdc_failure failure, why;
    hvdc_artifact *artifact = NULL;
    hvdc_shared_weights *shared = NULL;
    hvdc_child child = HVDC_NO_CHILD;
    bool passed = open_artifact(path, &artifact, &failure) &&
                  hvdc_shared_weights_load(artifact, 0, &shared, &failure) &&
                  hvdc_child_start(arguments, READER_FD, START_S, &child, &failure) &&
                  (lie == NULL ? hvdc_shared_weights_send(shared, child.socket, 20, &failure)
                               : send_lie(lie, shared, child.socket, &failure));
    if (passed) {
        say_shared("owner", shared);
        wait_for_stdin();
    } else {
        (void)say_failure(&failure);
    }
    if (child.socket >= 0) (void)shutdown(child.socket, SHUT_RDWR);
    char how[64] = "there was none";
    (void)hvdc_child_wait(&child, 10, how, sizeof how);
    (void)hvdc_child_end(&child, NULL, 0, &why);
    (void)printf("reader: %s\n", how);
    hvdc_shared_weights_close(shared);
    hvdc_artifact_close(artifact);
    return passed ? 0 : 1;
}

static int read_shared(const char *path) {
    hvdc_failure failure;
    hvdc_artifact *artifact = NULL;
    hvdc_shared_weights *shared = NULL;
    bool taken = open_artifact(path, &artifact, &failure) &&
                 hvdc_shared_weights_receive(artifact, READER_FD, 20, &shared, &failure);
    if (taken) {
        char end;
        say_shared("reader", shared);
        (void)recv(READER_FD, &end, 1, 0);
    }
    hvdc_shared_weights_close(shared);
    hvdc_artifact_close(artifact);
    return taken ? 0 : say_failure(&failure);
}

static int child(char **argv) {
    hvdc_child started;
    hvdc_failure failure;
    char how[64] = "";
    if (!hvdc_child_start(argv, READER_FD, stops ? 0.5 : START_S, &started, &failure)) return say_failure(&failure);
    bool ended = hvdc_child_wait(&started, 1, how, sizeof how);
    (void)printf("%s\n", ended ? how : "still there");
    if (!hvdc_child_end(&started, how, sizeof how, &failure)) return say_failure(&failure);
    (void)printf("%s\n", how);
    return 0;
}

static size_t from_hex(const char *hex, uint8_t *bytes, size_t room) {
    size_t count = 0;
    unsigned byte;
    /* NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion): two digits fit */
    for (; count < room && sscanf(hex + 2 * count, "%2x", &byte) == 1; count++) bytes[count] = (uint8_t)byte;
    return count;
}

static int channel(void) {
    static char line[65536];
    static uint8_t bytes[16384];
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned kind = 0;
        int at = 0, ends[2];
        hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
        hvdc_message message;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return 1;
        hvdc_channel out = hvdc_channel_on(ends[0]), in = hvdc_channel_on(ends[1]);
        /* NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion): nine digits fit */
        if (sscanf(line, "make %9u %n", &kind, &at) == 1) {
            bool sent = hvdc_channel_send(&out, kind, bytes, from_hex(line + at, bytes, sizeof bytes), -1, &failure);
            ssize_t got = sent ? recv(ends[1], bytes, sizeof bytes, 0) : 0;
            for (ssize_t i = 0; i < got; i++) (void)printf("%02x", (unsigned)bytes[i]);
            (void)printf("%s\n", failure.message);
        } else {
            size_t count = from_hex(line + strlen("take "), bytes, sizeof bytes);
            if (send(ends[0], bytes, count, MSG_NOSIGNAL) < 0) return 1;
            enum hvdc_received received = hvdc_channel_receive(&in, 0, &message, &failure);
            (void)printf("%d %u %u %s\n", (int)received, (unsigned)message.kind, (unsigned)message.bytes,
                         failure.message);
        }
        (void)fflush(stdout);
        (void)close(ends[0]), (void)close(ends[1]);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "kinds") == 0) return kinds();
    if (strcmp(command, "seal") == 0) return seal();
    if (strcmp(command, "load") == 0 && argc > 2) return load(argv[2], argc > 3 ? argv[3] : NULL);
    if (strcmp(command, "share") == 0 && argc > 3) return share(argv[2], argv[3], argc > 4 ? argv[4] : NULL);
    if (strcmp(command, "reader") == 0 && argc > 2) return read_shared(argv[2]);
    stops = strcmp(command, "stopped") == 0;
    if ((stops || strcmp(command, "child") == 0) && argc > 2) return child(argv + 2);
    if (strcmp(command, "channel") == 0) return channel();
    if (strcmp(command, "available") == 0 && argc > 2)
        return printf("%" PRIu64 "\n", hvdc_memory_available_in(argv[2])) < 0;
    (void)fprintf(stderr, "see the start of hvdc_platform_check.c\n");
    return 2;
}
