#define _GNU_SOURCE

#include "kept_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK ",\"check\":\""
#define SHA256 "\"sha256\":\""

void hvdc_hex_of(const uint8_t digest[HVDC_SHA256_BYTES], char hex[HVDC_HEX_BYTES]) {
    for (size_t i = 0; i < HVDC_SHA256_BYTES; i++) (void)snprintf(hex + 2 * i, 3, "%02x", (unsigned)digest[i]);
}

void hvdc_sha256_of(const void *data, size_t bytes, uint8_t digest[HVDC_SHA256_BYTES]) {
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, data, bytes);
    hvdc_sha256_final(&sha, digest);
}

size_t hvdc_seal(char *text, size_t bytes, size_t room) {
    uint8_t digest[HVDC_SHA256_BYTES];
    char check[HVDC_HEX_BYTES];
    hvdc_sha256_of(text, bytes, digest);
    hvdc_hex_of(digest, check);
    int more = bytes < room ? snprintf(text + bytes, room - bytes, CHECK "%s\"", check) : -1;
    return more > 0 && (size_t)more < room - bytes ? bytes + (size_t)more : 0;
}

bool hvdc_is_sealed(const char *text, const uint8_t digest[HVDC_SHA256_BYTES]) {
    uint8_t own[HVDC_SHA256_BYTES];
    char check[HVDC_HEX_BYTES], sha[HVDC_HEX_BYTES];
    const char *end = strstr(text, CHECK), *said = strstr(text, SHA256);
    if (end == NULL || said == NULL || said > end) return false;
    hvdc_sha256_of(text, (size_t)(end - text), own);
    hvdc_hex_of(own, check);
    hvdc_hex_of(digest, sha);
    return strncmp(end + strlen(CHECK), check, HVDC_HEX_BYTES - 1u) == 0 &&
           strncmp(said + strlen(SHA256), sha, HVDC_HEX_BYTES - 1u) == 0;
}

bool hvdc_kept_begin(const char *directory, const char *name, hvdc_kept_file *file) {
    *file = HVDC_NO_KEPT_FILE;
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    (void)snprintf(file->partial, sizeof file->partial, ".%s.partial", file->name);
    file->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->directory >= 0)
        file->fd = openat(file->directory, file->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd >= 0) return true;
    hvdc_kept_drop(file);
    return false;
}

bool hvdc_kept_write(const hvdc_kept_file *file, const void *data, size_t bytes) {
    for (const uint8_t *at = data; bytes > 0;) {
        ssize_t done = write(file->fd, at, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

bool hvdc_kept_rewrite(const hvdc_kept_file *file, const void *data, size_t bytes) {
    return lseek(file->fd, 0, SEEK_SET) == 0 && hvdc_kept_write(file, data, bytes);
}

bool hvdc_kept_end(hvdc_kept_file *file) {
    bool good = fsync(file->fd) == 0;
    if (good) {
        good = close(file->fd) == 0;
        file->fd = -1;
    }
    good = good && renameat(file->directory, file->partial, file->directory, file->name) == 0;
    if (good) file->partial[0] = 0;
    good = good && fsync(file->directory) == 0;
    hvdc_kept_drop(file);
    return good;
}

void hvdc_kept_drop(hvdc_kept_file *file) {
    int error = errno;
    if (file->fd >= 0) (void)close(file->fd);
    if (file->directory >= 0) {
        if (file->partial[0] != 0) (void)unlinkat(file->directory, file->partial, 0);
        (void)close(file->directory);
    }
    *file = HVDC_NO_KEPT_FILE;
    errno = error;
}

int hvdc_kept_open(const char *directory, const char *name) {
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = errno;
    (void)close(folder);
    errno = error;
    return fd;
}

bool hvdc_kept_is_there(const char *directory, const char *name) {
    struct stat status;
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool there = folder >= 0 && fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (folder >= 0) (void)close(folder);
    return there;
}

ptrdiff_t hvdc_read_fully(int fd, void *data, size_t bytes) {
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = read(fd, (uint8_t *)data + have, bytes - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        have += (size_t)got;
    }
    return (ptrdiff_t)have;
}
