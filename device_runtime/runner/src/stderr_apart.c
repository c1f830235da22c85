#define _GNU_SOURCE

#include "stderr_apart.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#define ABOVE 10 /* of descriptors that have a meaning, as HVDC_WORKER_FD */

/* A description of its own, so that no other process's is changed; -1 where there is none to be had. */
static int open_again(bool waits) {
    int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_APPEND | O_CLOEXEC);
    if (fd >= 0 && waits && fcntl(fd, F_SETFL, O_APPEND) != 0) { /* to open it so would wait for a reader */
        (void)close(fd);
        fd = -1;
    }
    if (fd < 0 || fd >= ABOVE) return fd;
    const int above = fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
    (void)close(fd);
    return above;
}

int hvdc_stderr_apart(void) {
    struct stat status;
    const bool can_fill =
        fstat(STDERR_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || isatty(STDERR_FILENO) == 1);
    const int own = can_fill ? open_again(true) : -1, theirs = own < 0 ? -1 : open_again(false);
    const bool apart = theirs >= 0 && dup2(theirs, STDERR_FILENO) >= 0 && dup2(theirs, STDOUT_FILENO) >= 0;
    if (theirs >= 0) (void)close(theirs);
    if (apart) return own;
    if (own >= 0) (void)close(own);
    return STDERR_FILENO;
}
