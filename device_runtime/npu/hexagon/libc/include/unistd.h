/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <unistd.h>, under emulation. */
#ifndef HVDC_LIBC_UNISTD_H
#define HVDC_LIBC_UNISTD_H

#define SEEK_END 2

typedef long long off_t;
typedef int pid_t;

int close(int fd);
off_t lseek(int fd, off_t offset, int whence);
pid_t getpid(void);

#endif
