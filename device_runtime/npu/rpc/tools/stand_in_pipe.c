#define _POSIX_C_SOURCE 200809L

#include "stand_in_pipe.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pipe.h"

#define WORDS_MAX 16

static pid_t child;
static int ours = -1;

bool stand_in_pipe_start(const char *command) {
    char text[1024], pid[16], *words[WORDS_MAX + 2], *rest = NULL;
    int count = 0, ends[2];
    if (child != 0 || snprintf(text, sizeof text, "%s", command) >= (int)sizeof text) return false;
    for (char *word = strtok_r(text, " ", &rest); word != NULL && count < WORDS_MAX; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    (void)snprintf(pid, sizeof pid, "%ld", (long)getpid());
    words[count] = pid;
    words[count + 1] = NULL;
    if (count == 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
    child = fork();
    if (child == 0) {
        (void)dup2(ends[1], 0);
        (void)dup2(ends[1], 1);
        (void)close(ends[0]);
        (void)close(ends[1]);
        (void)execvp(words[0], words);
        _exit(127);
    }
    (void)close(ends[1]);
    ours = ends[0];
    return child > 0;
}

void stand_in_pipe_kill(void) {
    if (child > 0) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        (void)close(ours);
    }
    child = 0;
    ours = -1;
}

static bool send_all(const void *data, size_t bytes) {
    for (const char *at = data; bytes > 0;) {
        const ssize_t sent = send(ours, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool receive_all(void *data, size_t bytes) {
    for (char *at = data; bytes > 0;) {
        const ssize_t got = recv(ours, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool ask(uint64_t handle, uint32_t scalars, const hvdc_remote_arg *args) {
    const uint32_t in = HVDC_REMOTE_IN(scalars), all = in + HVDC_REMOTE_OUT(scalars);
    const hvdc_pipe_call call = {.magic = HVDC_PIPE_MAGIC, .scalars = scalars, .handle = handle};
    bool good = send_all(&call, sizeof call);
    for (uint32_t i = 0; good && i < all; i++) {
        const hvdc_pipe_bytes bytes = (hvdc_pipe_bytes)args[i].buffer.bytes;
        good = send_all(&bytes, sizeof bytes);
    }
    for (uint32_t i = 0; good && i < in; i++) good = send_all(args[i].buffer.data, args[i].buffer.bytes);
    return good;
}

int stand_in_pipe_call(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args) {
    const uint32_t in = HVDC_REMOTE_IN(scalars), all = in + HVDC_REMOTE_OUT(scalars);
    hvdc_pipe_answer answer;
    if (child <= 0 || !ask(handle, scalars, args) || !receive_all(&answer, sizeof answer) ||
        answer.magic != HVDC_PIPE_MAGIC)
        return HVDC_AEE_CONNECTION_RESET;
    for (uint32_t i = in; answer.result == 0 && i < all; i++)
        if (!receive_all(args[i].buffer.data, args[i].buffer.bytes)) return HVDC_AEE_CONNECTION_RESET;
    if (scalars == HVDC_REMOTE_OPEN) args[all].handle = answer.handle;
    return answer.result;
}
