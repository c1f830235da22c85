/* Stand-ins for libcdsprpc.so (-DRPCMEM) and libnativewindow.so, on memory of
 * Linux: they prove what the runtime asks for, not what a phone's libraries do.
 * Where BROKEN is in the environment, an object's descriptor is of other
 * memory. */
#define _GNU_SOURCE

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct object {
    void *data;
    size_t bytes;
    int fd;
    struct {
        int version, fd_count, int_count, data[1];
    } handle;
} object;

static object objects[64];

static object *find(const void *data) {
    for (size_t i = 0; i < 64; i++)
        if (objects[i].data == data) return &objects[i];
    abort();
}

static object *make(size_t bytes) {
    object *o = objects;
    while (o->data != NULL) o++;
    o->bytes = bytes;
    o->fd = memfd_create("stand-in", MFD_CLOEXEC);
    if (o->fd < 0 || ftruncate(o->fd, (off_t)bytes) != 0) abort();
    o->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
    if (o->data == MAP_FAILED) abort();
    memset(o->data, 0x5a, bytes); /* not cleared: nobody promised that */
    if (getenv("BROKEN") != NULL) {
        (void)close(o->fd);
        o->fd = memfd_create("other", MFD_CLOEXEC);
        if (ftruncate(o->fd, (off_t)bytes) != 0) abort();
    }
    return o;
}

static void drop(object *o) {
    (void)munmap(o->data, o->bytes);
    (void)close(o->fd);
    memset(o, 0, sizeof *o);
}

#if defined(RPCMEM)
void *rpcmem_alloc(int heap, uint32_t flags, int bytes);
int rpcmem_to_fd(void *data);
void rpcmem_free(void *data);

void *rpcmem_alloc(int heap, uint32_t flags, int bytes) {
    fprintf(stderr, "rpcmem_alloc %d %u %d\n", heap, (unsigned)flags, bytes);
    return make((size_t)bytes)->data;
}

int rpcmem_to_fd(void *data) { return find(data)->fd; }

void rpcmem_free(void *data) {
    fprintf(stderr, "rpcmem_free\n");
    drop(find(data));
}
#else
typedef struct desc {
    uint32_t width, height, layers, format;
    uint64_t usage;
    uint32_t stride, rfu0;
    uint64_t rfu1;
} desc;

int AHardwareBuffer_allocate(const desc *d, object **buffer);
void AHardwareBuffer_release(object *buffer);
int AHardwareBuffer_lock(object *buffer, uint64_t usage, int fence, const void *rect, void **data);
int AHardwareBuffer_unlock(object *buffer, int *fence);
const void *AHardwareBuffer_getNativeHandle(const object *buffer);

int AHardwareBuffer_allocate(const desc *d, object **buffer) {
    fprintf(stderr, "allocate %u %u %u %#x %#llx\n", (unsigned)d->width, (unsigned)d->height, (unsigned)d->layers,
            (unsigned)d->format, (unsigned long long)d->usage);
    *buffer = make(d->width);
    (*buffer)->handle.version = 12;
    (*buffer)->handle.fd_count = 1;
    (*buffer)->handle.data[0] = (*buffer)->fd;
    return 0;
}

void AHardwareBuffer_release(object *buffer) {
    fprintf(stderr, "release\n");
    drop(find(buffer->data));
}

int AHardwareBuffer_lock(object *buffer, uint64_t usage, int fence, const void *rect, void **data) {
    fprintf(stderr, "lock %#llx %d %d\n", (unsigned long long)usage, fence, rect != NULL);
    *data = buffer->data;
    return 0;
}

int AHardwareBuffer_unlock(object *buffer, int *fence) {
    fprintf(stderr, "unlock %d %d\n", buffer->data != NULL, fence != NULL);
    return 0;
}

const void *AHardwareBuffer_getNativeHandle(const object *buffer) { return &buffer->handle; }
#endif
