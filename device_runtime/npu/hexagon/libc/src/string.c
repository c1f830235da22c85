/* Bytes and texts. -fno-builtin keeps the compiler from making a call of itself of a loop here. */
#include <string.h>

#include <stdint.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    uint8_t *restrict t = to;
    const uint8_t *restrict f = from;
    if ((((uintptr_t)to | (uintptr_t)from) & 7u) == 0u) {
        for (; bytes >= 8u; bytes -= 8u, t += 8, f += 8) {
            *(uint64_t *)(void *)t = *(const uint64_t *)(const void *)f;
        }
    }
    for (size_t i = 0; i < bytes; i++) {
        t[i] = f[i];
    }
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    uint8_t *t = to;
    const uint8_t *f = from;
    if (t < f) {
        for (size_t i = 0; i < bytes; i++) {
            t[i] = f[i];
        }
    } else {
        for (size_t i = bytes; i-- > 0u;) {
            t[i] = f[i];
        }
    }
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    uint8_t *t = to;
    for (size_t i = 0; i < bytes; i++) {
        t[i] = (uint8_t)value;
    }
    return to;
}

int memcmp(const void *left, const void *right, size_t bytes) {
    const uint8_t *l = left, *r = right;
    for (size_t i = 0; i < bytes; i++) {
        if (l[i] != r[i]) return l[i] - r[i];
    }
    return 0;
}

void *memchr(const void *in, int value, size_t bytes) {
    const uint8_t *at = in;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] == (uint8_t)value) return (void *)(uintptr_t)(at + i);
    }
    return NULL;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length] != 0) length++;
    return length;
}

int strncmp(const char *left, const char *right, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (left[i] != right[i]) return (uint8_t)left[i] - (uint8_t)right[i];
        if (left[i] == 0) break;
    }
    return 0;
}

int strcmp(const char *left, const char *right) { return strncmp(left, right, SIZE_MAX); }

char *strchr(const char *text, int value) {
    for (; *text != (char)value; text++) {
        if (*text == 0) return NULL;
    }
    return (char *)(uintptr_t)text;
}
