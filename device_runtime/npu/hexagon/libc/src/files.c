/* Programs under qemu-user: descriptors and what is mapped of them. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"

enum { SYS_OPENAT = 56, SYS_CLOSE = 57, SYS_LLSEEK = 62, SYS_GETPID = 172, SYS_MUNMAP = 215, SYS_MMAP = 222 };
enum { AT_FDCWD = -100 };

static long of_errno(long result) { return result < 0 && result > -4096 ? -1 : result; }

int open(const char *path, int flags, ...) {
    return (int)of_errno(call(SYS_OPENAT, AT_FDCWD, (long)path, flags, 0, 0, 0));
}

int close(int fd) { return (int)of_errno(call(SYS_CLOSE, fd, 0, 0, 0, 0, 0)); }

pid_t getpid(void) { return (pid_t)call(SYS_GETPID, 0, 0, 0, 0, 0, 0); }

off_t lseek(int fd, off_t offset, int whence) {
    off_t at = 0;
    const long failed = call(SYS_LLSEEK, fd, (long)((uint64_t)offset >> 32), (long)offset, (long)&at, whence, 0);
    return failed == 0 ? at : -1;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (offset != 0) return MAP_FAILED; /* which nobody needs */
    return (void *)of_errno(call(SYS_MMAP, (long)address, (long)bytes, protection, flags, fd, 0));
}

int munmap(void *address, size_t bytes) {
    return (int)of_errno(call(SYS_MUNMAP, (long)address, (long)bytes, 0, 0, 0, 0));
}
