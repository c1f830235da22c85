/* One copy of an artifact's weights for two processes.
 *
 * The owner (the process of the NPU) copies each region file and each adapter file into a shared-memory object of its
 * own, and compares its SHA-256 with the artifact's while it copies. Then the object is sealed: nobody can write it, grow
 * it or shrink it any more. The files of the other kinds are small and stay in the artifact's own mapping; their SHA-256
 * is compared too, so that nothing unverified is executed. (Files of the decoder are checked by who loads them:
 * hvdc_artifact_opaque.)
 *
 * The owner passes the descriptors to the reader (the process of the GPU) over a Unix-domain socket. Both have opened the
 * artifact; before any descriptor crosses they compare ABI version, the SHA-256 of index.bin, and for each file its
 * size and what the descriptor itself says (size, seals). The reader maps the same pages, read-only.
 *
 *     owner:   hvdc_shared_weights_load(artifact, limit, &shared, &failure)
 *              npu engine over hvdc_shared_weights_view(shared)
 *              hvdc_stream_run(…)                         sends them to its worker; see hvdc/coordinator.h
 *     reader:  hvdc_worker_serve(…)                       receives them, and hands its engine a view
 *
 * A view's `fds[i]` is a descriptor of file i from offset 0, open for reading only, for drivers that import memory by
 * descriptor; -1 where the file stays in the artifact's mapping. */
#ifndef HVDC_SHARED_WEIGHTS_H
#define HVDC_SHARED_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/artifact.h"
#include "hvdc/failure.h"
#include "hvdc/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_shared_weights hvdc_shared_weights;

/* Bytes that an artifact's shared files take. */
uint64_t hvdc_shared_weights_due_bytes(const hvdc_artifact *artifact);

/* Copies, verifies and seals. Refuses at once, before a byte is copied, if the shared bytes are more than
 * `limit_bytes`, or, where that is 0, than the system says it has available. The artifact outlives the result. */
bool hvdc_shared_weights_load(const hvdc_artifact *artifact, uint64_t limit_bytes, hvdc_shared_weights **shared,
                              hvdc_failure *failure);

/* Both ends of a connected SOCK_SEQPACKET socket; each call returns when the whole exchange is over, or fails when the
 * other end is gone, says something else, or is silent for `timeout_s` seconds (0: wait for ever). */
bool hvdc_shared_weights_send(const hvdc_shared_weights *shared, int socket, double timeout_s, hvdc_failure *failure);
bool hvdc_shared_weights_receive(const hvdc_artifact *artifact, int socket, double timeout_s,
                                 hvdc_shared_weights **shared, hvdc_failure *failure);

/* What an engine reads; valid until the close. */
const hvdc_weights *hvdc_shared_weights_view(const hvdc_shared_weights *shared);

/* Bytes of shared memory that it holds, counted once whoever maps them. */
uint64_t hvdc_shared_weights_bytes(const hvdc_shared_weights *shared);

/* "memfd", "dma-buf heap", …: which kind of shared memory was chosen. */
const char *hvdc_shared_weights_kind(const hvdc_shared_weights *shared);

/* Unmaps and closes; NULL is allowed. Pages go when both processes have closed, or died. */
void hvdc_shared_weights_close(hvdc_shared_weights *shared);

#ifdef __cplusplus
}
#endif

#endif
