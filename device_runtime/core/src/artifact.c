/* Opening an artifact's directory, and closing it. Everything is opened relative to the directory's descriptor and no
 * link is followed, so that an artifact can name nothing outside of itself. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "artifact_internal.h"
#include "error.h"
#include "sha256.h"

static enum hvdc_code refuse_errno(hvdc_error *error, const char *file) {
    return hvdc_refuse(error, errno == ENOENT ? HVDC_E_MISSING_FILE : HVDC_E_IO, file, "%s", strerror(errno));
}

/* Open "name" or "folder/name", a path of at most HVDC_TEXT_LIMIT bytes, as a regular file. */
static enum hvdc_code open_file(int directory, const char *path, int *fd, uint64_t *bytes, hvdc_error *error) {
    int parent = directory;
    const char *slash = strchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    if (slash != NULL) {
        char folder[HVDC_TEXT_LIMIT + 1u];
        size_t length = (size_t)(slash - path);
        memcpy(folder, path, length);
        folder[length] = 0;
        parent = openat(directory, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (parent < 0) return refuse_errno(error, path);
    }
    *fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not block */
    enum hvdc_code code = *fd < 0 ? refuse_errno(error, path) : HVDC_E_OK;
    if (slash != NULL) (void)close(parent);
    if (code != HVDC_E_OK) return code;
    struct stat status;
    if (fstat(*fd, &status) != 0)
        code = refuse_errno(error, path);
    else if (!S_ISREG(status.st_mode))
        code = hvdc_refuse(error, HVDC_E_IO, path, "not a regular file");
    else
        *bytes = (uint64_t)status.st_size;
    if (code != HVDC_E_OK) (void)close(*fd);
    return code;
}

static enum hvdc_code map_file(hvdc_mapped *file, const char *path, hvdc_error *error) {
    if (file->bytes == 0) return HVDC_E_OK;
    if (file->bytes > SIZE_MAX)
        return hvdc_refuse(error, HVDC_E_IO, path, "%" PRIu64 " bytes do not fit the address space", file->bytes);
    void *data = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (data == MAP_FAILED) return hvdc_refuse(error, HVDC_E_IO, path, "%s", strerror(errno));
    file->data = data;
    return HVDC_E_OK;
}

static void unmap_file(hvdc_mapped *file) {
    if (file->data != NULL) (void)munmap((void *)(uintptr_t)file->data, (size_t)file->bytes);
    if (file->fd >= 0) (void)close(file->fd);
    *file = (hvdc_mapped){.fd = -1};
}

static enum hvdc_code open_index(hvdc_artifact *artifact, int directory, hvdc_error *error) {
    static const uint8_t empty[8];
    hvdc_mapped *file = &artifact->index_file;
    enum hvdc_code code = open_file(directory, HVDC_INDEX_NAME, &file->fd, &file->bytes, error);
    if (code != HVDC_E_OK) {
        file->fd = -1;
        return code;
    }
    code = map_file(file, HVDC_INDEX_NAME, error);
    if (code != HVDC_E_OK) return code;
    return hvdc_index_parse(file->data == NULL ? empty : file->data, file->bytes, &artifact->index, error);
}

/* Read and not mapped: the manifest is for people and tools, the runtime needs its hash only. */
static enum hvdc_code check_manifest(const hvdc_artifact *artifact, int directory, hvdc_error *error) {
    int fd;
    uint64_t bytes;
    uint8_t buffer[16384], digest[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    enum hvdc_code code = open_file(directory, HVDC_MANIFEST_NAME, &fd, &bytes, error);
    if (code != HVDC_E_OK) return code;
    hvdc_sha256_init(&sha);
    for (;;) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) code = hvdc_refuse(error, HVDC_E_IO, HVDC_MANIFEST_NAME, "%s", strerror(errno));
        if (got <= 0) break;
        hvdc_sha256_update(&sha, buffer, (size_t)got);
    }
    (void)close(fd);
    if (code != HVDC_E_OK) return code;
    hvdc_sha256_final(&sha, digest);
    if (memcmp(digest, artifact->index.header->manifest_sha256, sizeof digest) != 0)
        return hvdc_refuse(error, HVDC_E_MANIFEST_HASH, HVDC_MANIFEST_NAME, "its SHA-256 is not the one in %s",
                           HVDC_INDEX_NAME);
    return HVDC_E_OK;
}

static enum hvdc_code open_data(hvdc_artifact *artifact, uint32_t i, int directory, hvdc_error *error) {
    const hvdc_file *record = hvdc_index_file(&artifact->index, i);
    const char *path = artifact->index.strings + record->path;
    hvdc_mapped *file = &artifact->files[i];
    enum hvdc_code code = open_file(directory, path, &file->fd, &file->bytes, error);
    if (code != HVDC_E_OK) return code;
    artifact->open_files = i + 1u;
    if (file->bytes != record->bytes)
        return hvdc_refuse(error, HVDC_E_FILE_SIZE, path, "expected %" PRIu64 " bytes, found %" PRIu64, record->bytes,
                           file->bytes);
    return map_file(file, path, error);
}

/* Whether the index names a path, as a file or as the folder of one. */
static bool is_named(const hvdc_index *index, const char *path) {
    size_t length = strlen(path);
    if (strcmp(path, HVDC_INDEX_NAME) == 0 || strcmp(path, HVDC_MANIFEST_NAME) == 0) return true;
    for (uint32_t i = 0; i < index->files.count; i++) {
        const char *file = index->strings + hvdc_index_file(index, i)->path;
        if (strncmp(file, path, length) == 0 && (file[length] == 0 || file[length] == '/')) return true;
    }
    return false;
}

/* Look for entries that the index does not name in a folder, or in the whole artifact if `folder` is NULL. All that it
 * names was opened before, so a name in it without '/' that is not index.bin or manifest.json is a folder, no link. */
static enum hvdc_code check_extra(const hvdc_index *index, int parent, const char *folder, hvdc_error *error) {
    const char *where = folder == NULL ? "." : folder;
    int fd = openat(parent, where, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return refuse_errno(error, where);
    DIR *stream = fdopendir(fd);
    enum hvdc_code code = stream == NULL ? refuse_errno(error, where) : HVDC_E_OK;
    if (stream == NULL) (void)close(fd);
    while (code == HVDC_E_OK) {
        char path[2 * HVDC_ERROR_FILE_BYTES]; /* cut off, it is longer than any path in the index */
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (entry == NULL) {
            if (errno != 0) code = hvdc_refuse(error, HVDC_E_IO, where, "%s", strerror(errno));
            break;
        }
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        (void)snprintf(path, sizeof path, "%s%s%s", folder == NULL ? "" : folder, folder == NULL ? "" : "/", name);
        struct stat status; /* the runtime is no part of the model: its folder has a list of its own */
        bool runtime = strcmp(path, HVDC_RUNTIME_NAME) == 0 && fstatat(fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                       S_ISDIR(status.st_mode);
        if (!is_named(index, path) && runtime) continue;
        if (!is_named(index, path))
            code = hvdc_refuse(error, HVDC_E_EXTRA_FILE, path, "%s does not name it", HVDC_INDEX_NAME);
        else if (folder == NULL && strcmp(name, HVDC_INDEX_NAME) != 0 && strcmp(name, HVDC_MANIFEST_NAME) != 0)
            code = check_extra(index, fd, name, error);
    }
    if (stream != NULL) (void)closedir(stream);
    return code;
}

static enum hvdc_code open_all(hvdc_artifact *artifact, int directory, hvdc_error *error) {
    enum hvdc_code code = open_index(artifact, directory, error);
    if (code == HVDC_E_OK) code = check_manifest(artifact, directory, error);
    if (code != HVDC_E_OK) return code;
    artifact->files = calloc(artifact->index.files.count, sizeof *artifact->files);
    if (artifact->files == NULL)
        return hvdc_refuse(error, HVDC_E_IO, HVDC_INDEX_NAME, "no memory for %" PRIu32 " files",
                           artifact->index.files.count);
    for (uint32_t i = 0; code == HVDC_E_OK && i < artifact->index.files.count; i++)
        code = open_data(artifact, i, directory, error);
    return code == HVDC_E_OK ? check_extra(&artifact->index, directory, NULL, error) : code;
}

static void release(hvdc_artifact *artifact) {
    for (uint32_t i = 0; i < artifact->open_files; i++) unmap_file(&artifact->files[i]);
    free(artifact->files);
    hvdc_index_free(&artifact->index);
    unmap_file(&artifact->index_file);
    free(artifact);
}

enum hvdc_code hvdc_artifact_open(const char *directory, hvdc_artifact **artifact, hvdc_error *error) {
    *artifact = NULL;
    if (error != NULL) *error = (hvdc_error){.code = HVDC_E_OK};
    hvdc_artifact *made = calloc(1, sizeof *made);
    if (made == NULL) return hvdc_refuse(error, HVDC_E_IO, directory, "no memory");
    made->index_file.fd = -1;
    made->release = release;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum hvdc_code code = fd < 0 ? refuse_errno(error, directory) : open_all(made, fd, error);
    if (fd >= 0) (void)close(fd);
    if (code == HVDC_E_OK)
        *artifact = made;
    else
        hvdc_artifact_close(made);
    return code;
}
