/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <stdio.h>. Streams are those of
 * the programs that run under emulation. */
#ifndef HVDC_LIBC_STDIO_H
#define HVDC_LIBC_STDIO_H

#include <stdarg.h>
#include <stddef.h>

#define EOF (-1)

typedef struct hvdc_libc_stream FILE;

extern FILE *const stdin, *const stdout, *const stderr;

/* %s, %d, %u, %x, %c, %%, with a width, a precision of %s, l, ll and z; %g writes the bits of its value. */
int snprintf(char *restrict to, size_t bytes, const char *restrict format, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char *restrict to, size_t bytes, const char *restrict format, va_list values);

int printf(const char *restrict format, ...) __attribute__((format(printf, 1, 2)));
int fprintf(FILE *stream, const char *restrict format, ...) __attribute__((format(printf, 2, 3)));
int fputc(int value, FILE *stream);
int fputs(const char *restrict text, FILE *restrict stream);
int fflush(FILE *stream);
size_t fread(void *restrict to, size_t size, size_t count, FILE *restrict stream);
size_t fwrite(const void *restrict from, size_t size, size_t count, FILE *restrict stream);
char *fgets(char *restrict to, int bytes, FILE *restrict stream);

#endif
