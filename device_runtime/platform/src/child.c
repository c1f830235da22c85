#define _GNU_SOURCE

#include "hvdc/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hvdc/clock.h"

#define KILL_TIMEOUT_S 10.0
#define POLL_NS 1000000

/* Every descriptor from `first` on. Those of the caller's libraries need not be close-on-exec. */
static void close_from(int first) {
#if defined(SYS_close_range)
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0) return;
#endif
    struct rlimit limit;
    int end = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536 ? (int)limit.rlim_cur : 65536;
    for (int fd = first; fd < end; fd++) (void)close(fd);
}

/* Between fork and exec of a program with threads: system calls only. Writes errno to `report` if it cannot go on. */
static void become(char *const *argv, int socket, int fd, int report, pid_t parent) {
    struct sigaction plain = {.sa_handler = SIG_DFL}, ignored = {.sa_handler = SIG_IGN};
    sigset_t none;
    (void)sigemptyset(&none);
    for (int signal = 1; signal < 32; signal++) (void)sigaction(signal, &plain, NULL);
    (void)sigaction(SIGINT, &ignored, NULL);
    (void)sigaction(SIGTERM, &ignored, NULL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL); /* NOLINT(concurrency-mt-unsafe): of one thread, after fork */
    /* Above what is overwritten next. */
    int keep = fcntl(socket, F_DUPFD, fd + 2), tell = fcntl(report, F_DUPFD, fd + 2);
    int nothing = open("/dev/null", O_RDONLY);
    bool ready = keep >= 0 && tell >= 0 && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
                 dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 && dup2(keep, fd) >= 0 && dup2(tell, fd + 1) >= 0 &&
                 fcntl(fd + 1, F_SETFD, FD_CLOEXEC) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
    if (ready && getppid() != parent) _exit(1); /* it died before the kernel was asked to tell */
    if (ready) {
        close_from(fd + 2);
        (void)execv(argv[0], argv);
    }
    int error = errno;
    if (write(ready ? fd + 1 : report, &error, sizeof error) < 0) _exit(126);
    _exit(127);
}

/* What `become` has to say: 0 at its end, which is the program's beginning; ETIMEDOUT if it says nothing in time. */
static int heard(int report, double timeout_s) {
    const uint64_t start_ns = hvdc_clock_ns();
    for (;;) {
        const double left_s = timeout_s - (double)(hvdc_clock_ns() - start_ns) * 1e-9;
        struct pollfd on = {.fd = report, .events = POLLIN};
        const int wait_ms = left_s <= 0 ? 0 : left_s > 1.0 ? 1000 : (int)(left_s * 1e3) + 1;
        const int ready = poll(&on, 1, wait_ms);
        int error = 0;
        if (ready > 0) {
            const ssize_t got = read(report, &error, sizeof error);
            if (got >= 0) return got == 0 ? 0 : error;
        }
        if (ready != 0 && errno != EINTR) return errno;
        if (ready == 0 && left_s <= 0) return ETIMEDOUT;
    }
}

bool hvdc_child_start(char *const *argv, int fd, double timeout_s, hvdc_child *child, hvdc_failure *failure) {
    *child = HVDC_NO_CHILD;
    int ends[2], report[2], error = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "no socket for the process %s: %s", argv[0], strerror(errno));
    if (pipe2(report, O_CLOEXEC) != 0) {
        error = errno;
        (void)close(ends[0]), (void)close(ends[1]);
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "no pipe for the process %s: %s", argv[0], strerror(error));
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) become(argv, ends[1], fd, report[1], parent);
    if (pid < 0) error = errno;
    (void)close(ends[1]), (void)close(report[1]);
    if (pid > 0) error = heard(report[0], timeout_s);
    (void)close(report[0]);
    hvdc_child made = {.pid = pid > 0 ? pid : 0, .socket = ends[0]};
    if (error == 0) {
        *child = made;
        return true;
    }
    /* It may be stopped, or in the middle of what does not come to an end. */
    if (!hvdc_child_end(&made, NULL, 0, failure)) return false;
    if (error == ETIMEDOUT && pid > 0)
        return hvdc_fail(failure, HVDC_FAILURE_PEER,
                         "the process %s has not begun within %.1f s: it was stopped, or the system does not load it",
                         argv[0], timeout_s);
    return hvdc_fail(failure, HVDC_FAILURE_PEER, "the process %s cannot be started: %s", argv[0], strerror(error));
}

static void say_how(int status, char *how, size_t bytes) {
    if (how == NULL) return;
    if (WIFSIGNALED(status))
        (void)snprintf(how, bytes, "it was killed by signal %d", WTERMSIG(status));
    else
        (void)snprintf(how, bytes, "it ended with status %d", WEXITSTATUS(status));
}

bool hvdc_child_wait(hvdc_child *child, double timeout_s, char *how, size_t how_bytes) {
    uint64_t start = hvdc_clock_ns();
    int status = 0;
    while (child->pid != 0) {
        pid_t ended = waitpid(child->pid, &status, WNOHANG);
        if (ended > 0) {
            say_how(status, how, how_bytes);
            child->pid = 0;
            return true;
        }
        if (ended < 0 && errno != EINTR) child->pid = 0; /* somebody else has reaped it */
        if ((double)(hvdc_clock_ns() - start) * 1e-9 >= timeout_s) return false;
        struct timespec pause = {.tv_nsec = POLL_NS};
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

bool hvdc_child_end(hvdc_child *child, char *how, size_t how_bytes, hvdc_failure *failure) {
    bool gone = true;
    if (child->pid != 0 && !hvdc_child_wait(child, 0, how, how_bytes)) {
        (void)kill(child->pid, SIGKILL);
        gone = hvdc_child_wait(child, KILL_TIMEOUT_S, how, how_bytes);
    }
    if (child->socket >= 0) (void)close(child->socket);
    child->socket = -1;
    return gone ||
           hvdc_fail(failure, HVDC_FAILURE_PEER,
                     "process %d was killed and has not gone within %.0f s: a driver holds it; restart the device",
                     (int)child->pid, KILL_TIMEOUT_S);
}
