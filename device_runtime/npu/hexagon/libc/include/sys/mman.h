/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <sys/mman.h>, under emulation. */
#ifndef HVDC_LIBC_SYS_MMAN_H
#define HVDC_LIBC_SYS_MMAN_H

#include <stddef.h>
#include <unistd.h>

#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_FAILED ((void *)-1)

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int munmap(void *address, size_t bytes);

#endif
