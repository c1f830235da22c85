/* Programs under qemu-user: streams, memory and time through Linux's system calls. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"

/* A program's entry: r29 points to argc, argv. HVX spills need a stack at 128 bytes. */
__asm__(
    ".globl _start\n"
    ".type _start, @function\n"
    "_start:\n"
    "{ r0 = memw(r29+#0)\n  r1 = add(r29,#4) }\n"
    "{ r29 = and(r29,#-128) }\n"
    "{ r31:30 = combine(#0,#0) }\n"
    "{ call main }\n"
    "{ call exit }\n");

enum { SYS_READ = 63, SYS_WRITE = 64, SYS_EXIT = 93, SYS_CLOCK_GETTIME = 113, SYS_MUNMAP = 215, SYS_MMAP = 222 };

_Noreturn void exit(int status) {
    (void)fflush(stdout);
    (void)call(SYS_EXIT, status, 0, 0, 0, 0, 0);
    for (;;) {
    }
}

_Noreturn void abort(void) { exit(134); }

int timespec_get(struct timespec *now, int base) {
    struct {
        long seconds, nanoseconds;
    } kernel = {0, 0};
    if (call(SYS_CLOCK_GETTIME, 0, (long)&kernel, 0, 0, 0, 0) != 0) return 0;
    *now = (struct timespec){kernel.seconds, kernel.nanoseconds};
    return base;
}

/* Every allocation is a mapping of its own, which is noted in front of it: few are made, and a use after free faults. */
struct mapping {
    void *first;
    size_t bytes;
};

#define HEADER 128u /* keeps what follows aligned for HVX */
enum { READ_WRITE = 3, PRIVATE_ANONYMOUS = 0x22 };

_Static_assert(sizeof(struct mapping) <= HEADER, "the note fits");

void *aligned_alloc(size_t alignment, size_t bytes) {
    const size_t most = alignment < HEADER ? HEADER : alignment;
    if (bytes > SIZE_MAX - 2u * most || (most & (most - 1u)) != 0u) return NULL;
    const size_t all = bytes + 2u * most;
    const long made = call(SYS_MMAP, 0, (long)all, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
    if (made < 0 && made > -4096) return NULL;
    uint8_t *memory = (uint8_t *)(((uintptr_t)made + 2u * most - 1u) & ~(most - 1u));
    *(struct mapping *)(void *)(memory - HEADER) = (struct mapping){(void *)made, all};
    return memory;
}

void *malloc(size_t bytes) { return aligned_alloc(HEADER, bytes); }

void *calloc(size_t count, size_t bytes) {
    return bytes != 0u && count > SIZE_MAX / bytes ? NULL : malloc(count * bytes); /* mappings are zeros */
}

void free(void *memory) {
    if (memory == NULL) return;
    const struct mapping *mapping = (void *)((uint8_t *)memory - HEADER);
    (void)call(SYS_MUNMAP, (long)mapping->first, (long)mapping->bytes, 0, 0, 0, 0);
}

struct hvdc_libc_stream {
    int fd;
    size_t at, end;
    uint8_t buffer[65536];
};

static FILE streams[3] = {{.fd = 0}, {.fd = 1}, {.fd = 2}};
FILE *const stdin = &streams[0], *const stdout = &streams[1], *const stderr = &streams[2];

int fflush(FILE *stream) {
    for (size_t done = 0; done < stream->end;) {
        const long wrote =
            call(SYS_WRITE, stream->fd, (long)(stream->buffer + done), (long)(stream->end - done), 0, 0, 0);
        if (wrote <= 0) return EOF;
        done += (size_t)wrote;
    }
    stream->end = 0;
    return 0;
}

size_t fwrite(const void *restrict from, size_t size, size_t count, FILE *restrict stream) {
    const uint8_t *at = from;
    for (size_t left = size * count; left > 0u;) {
        size_t room = sizeof stream->buffer - stream->end, part = left < room ? left : room;
        memcpy(stream->buffer + stream->end, at, part);
        stream->end += part;
        at += part;
        left -= part;
        if ((stream->end == sizeof stream->buffer || stream->fd == 2) && fflush(stream) != 0) return 0;
    }
    return count;
}

/* False at the end of the input. */
static int fill(FILE *stream) {
    if (stream->at < stream->end) return 1;
    const long got = call(SYS_READ, stream->fd, (long)stream->buffer, sizeof stream->buffer, 0, 0, 0);
    stream->at = 0;
    stream->end = got < 0 ? 0u : (size_t)got;
    return stream->end > 0u;
}

size_t fread(void *restrict to, size_t size, size_t count, FILE *restrict stream) {
    uint8_t *at = to;
    for (size_t left = size * count; left > 0u;) {
        if (!fill(stream)) return (size * count - left) / size;
        size_t there = stream->end - stream->at, part = left < there ? left : there;
        memcpy(at, stream->buffer + stream->at, part);
        stream->at += part;
        at += part;
        left -= part;
    }
    return count;
}

char *fgets(char *restrict to, int bytes, FILE *restrict stream) {
    int length = 0;
    while (length + 1 < bytes && fill(stream)) {
        to[length] = (char)stream->buffer[stream->at++];
        if (to[length++] == '\n') break;
    }
    to[length] = 0;
    return length > 0 ? to : NULL;
}

int fputc(int value, FILE *stream) {
    const char byte = (char)value;
    return fwrite(&byte, 1, 1, stream) == 1u ? value : EOF;
}

int fputs(const char *restrict text, FILE *restrict stream) {
    return fwrite(text, strlen(text), 1, stream) == 1u ? 0 : EOF;
}

static int vfprintf(FILE *stream, const char *restrict format, va_list values) {
    char line[1024];
    int length = vsnprintf(line, sizeof line, format, values);
    (void)fputs(line, stream);
    return length;
}

int fprintf(FILE *stream, const char *restrict format, ...) {
    va_list values;
    va_start(values, format);
    int length = vfprintf(stream, format, values);
    va_end(values);
    return length;
}

int printf(const char *restrict format, ...) {
    va_list values;
    va_start(values, format);
    int length = vfprintf(stdout, format, values);
    va_end(values);
    return length;
}

unsigned long strtoul(const char *text, char **end, int base) {
    unsigned long value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) value = value * (unsigned long)base + (unsigned long)(*at - '0');
    if (end != NULL) *end = (char *)(uintptr_t)at;
    return value;
}
