/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <fcntl.h>, under emulation. */
#ifndef HVDC_LIBC_FCNTL_H
#define HVDC_LIBC_FCNTL_H

#define O_RDONLY 0
#define O_RDWR 2

int open(const char *path, int flags, ...);

#endif
