#include "cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sha256.h"

#define PATH_BYTES 4096
#define MAX_FILE_BYTES (256l << 20)

void hvdc_cache_key(const char *const *texts, uint32_t count, char key[HVDC_CACHE_KEY_BYTES]) {
    hvdc_sha256 sha;
    uint8_t digest[HVDC_SHA256_BYTES];
    hvdc_sha256_init(&sha);
    for (uint32_t i = 0; i < count; ++i) {
        hvdc_sha256_update(&sha, texts[i], strlen(texts[i]) + 1);
    }
    hvdc_sha256_final(&sha, digest);
    for (size_t i = 0; i < sizeof digest; ++i) {
        (void)snprintf(key + 2 * i, 3, "%02x", (unsigned)digest[i]);
    }
}

static void digest_of(const void *data, size_t bytes, uint8_t digest[HVDC_SHA256_BYTES]) {
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, data, bytes);
    hvdc_sha256_final(&sha, digest);
}

static bool path_of(const char *directory, const char *prefix, const char *key, const char *end, char *path) {
    int length = snprintf(path, PATH_BYTES, "%s/%s-%s%s", directory, prefix, key, end);
    return length > 0 && length < PATH_BYTES;
}

uint8_t *hvdc_cache_read(const char *directory, const char *prefix, const char *key, size_t *bytes) {
    char path[PATH_BYTES];
    FILE *file = directory != NULL && path_of(directory, prefix, key, "", path) ? fopen(path, "rb") : NULL;
    uint8_t expected[HVDC_SHA256_BYTES], found[HVDC_SHA256_BYTES];
    uint8_t *data = NULL;
    if (file == NULL) {
        return NULL;
    }
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size > HVDC_SHA256_BYTES && size < MAX_FILE_BYTES && fseek(file, 0, SEEK_SET) == 0) {
        *bytes = (size_t)size - HVDC_SHA256_BYTES;
        data = malloc(*bytes);
    }
    bool good = data != NULL && fread(expected, 1, sizeof expected, file) == sizeof expected &&
                fread(data, 1, *bytes, file) == *bytes;
    if (good) {
        digest_of(data, *bytes, found);
        good = memcmp(expected, found, sizeof found) == 0;
    }
    (void)fclose(file);
    if (!good) {
        free(data);
        return NULL;
    }
    return data;
}

bool hvdc_cache_has(const char *directory, const char *prefix, const char *key) {
    size_t bytes;
    uint8_t *data = hvdc_cache_read(directory, prefix, key, &bytes);
    free(data);
    return data != NULL;
}

/* Like `mkdir -p`. */
static void make_directory(const char *directory) {
    char path[PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s", directory) >= sizeof path) {
        return;
    }
    for (char *at = path + 1; *at != 0; ++at) {
        if (*at == '/') {
            *at = 0;
            mkdir(path, 0777);
            *at = '/';
        }
    }
    mkdir(path, 0777);
}

bool hvdc_cache_write(const char *directory, const char *prefix, const char *key, const void *data, size_t bytes) {
    char path[PATH_BYTES], partial[PATH_BYTES], end[32];
    if (directory == NULL || bytes == 0) {
        return false;
    }
    make_directory(directory);
    (void)snprintf(end, sizeof end, ".%ld.partial",
                   (long)getpid()); /* two processes write the same: the later move wins */
    if (!path_of(directory, prefix, key, "", path) || !path_of(directory, prefix, key, end, partial)) {
        return false;
    }
    FILE *file = fopen(partial, "wb");
    if (file == NULL) {
        return false;
    }
    uint8_t digest[HVDC_SHA256_BYTES];
    digest_of(data, bytes, digest);
    bool good = fwrite(digest, 1, sizeof digest, file) == sizeof digest && fwrite(data, 1, bytes, file) == bytes;
    good = fclose(file) == 0 && good;
    good = good && rename(partial, path) == 0;
    if (!good) {
        (void)remove(partial);
    }
    return good;
}
