/* Memory that two processes, and on a phone two engines, map.
 *
 * A kind of memory is chosen at the start by what works, not by name: hvdc_memory_choose makes one object of each kind in
 * turn, maps it twice, writes through one mapping and reads through the other, and takes the first kind for which that is
 * right. On a Linux host there is one kind, "memfd". On Android (compiled there only) come before it, in this order,
 * "dma-buf heap", "AHardwareBuffer" and "rpcmem" (the Hexagon heap of libcdsprpc.so): an NPU or a GPU imports them,
 * and neither imports a memfd.
 *
 * Sealing. What is sealed stays as it is: of a memfd nobody can map it writable, write it, grow it or shrink it. The
 * kernel has no seals for the other kinds; there the reader's mapping is read-only, and that is all. */
#ifndef HVDC_SHARED_MEMORY_H
#define HVDC_SHARED_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_memory {
    uint8_t *data; /* mapped; NULL: none */
    uint64_t bytes;
    int fd;       /* -1: none */
    void *handle; /* of a kind that has more than a descriptor */
} hvdc_memory;

#define HVDC_NO_MEMORY ((hvdc_memory){.fd = -1})

/* Each function of a kind but `close` fails with a sentence and leaves nothing behind. */
typedef struct hvdc_memory_kind {
    const char *name;
    bool sealable;
    /* New zeroed memory, mapped writable, all of its pages there. `name` is shown in /proc. */
    bool (*create)(const char *name, uint64_t bytes, hvdc_memory *memory, hvdc_failure *failure);
    /* Before the CPU reads or writes memory that an engine writes or reads, and after it wrote: caches. */
    bool (*begin_write)(hvdc_memory *memory, hvdc_failure *failure);
    bool (*end_write)(hvdc_memory *memory, hvdc_failure *failure);
    void (*close)(hvdc_memory *memory);
} hvdc_memory_kind;

/* The first kind that works here. */
const hvdc_memory_kind *hvdc_memory_choose(hvdc_failure *failure);

/* Which kinds this build has, NULL-terminated. */
const hvdc_memory_kind *const *hvdc_memory_kinds(void);

/* Whether two mappings of an object of this kind are the same memory. */
bool hvdc_memory_probe(const hvdc_memory_kind *kind, hvdc_failure *failure);

/* Makes what was written final: afterwards `data` is read-only, and `fd` is open for reading only. */
bool hvdc_memory_seal(const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure);

/* Only its size becomes final: memory that both processes write. */
bool hvdc_memory_fix_size(const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure);

/* Maps memory that another process made. Takes `fd`, also when it fails: for one of another size, and where `sealed` is
 * asked for and the memory, being a memfd, is not. Close with hvdc_memory_unmap. */
bool hvdc_memory_import(int fd, uint64_t bytes, bool sealed, hvdc_memory *memory, hvdc_failure *failure);
void hvdc_memory_unmap(hvdc_memory *memory);

/* Bytes that the system could give without taking them from others: MemAvailable of /proc/meminfo, or less where a control
 * group (version 2, as of a container) of this process allows less beside what it holds already; UINT64_MAX if nothing
 * is said. */
uint64_t hvdc_memory_available_bytes(void);

/* Refuses `bytes` for `what` beyond `limit_bytes`, or, where that is 0, beyond what is available. */
bool hvdc_memory_fits(const char *what, uint64_t bytes, uint64_t limit_bytes, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
