/* What the CPU may ask of the DSP, described once: docs/HEXAGON.md explains it, everything else follows from here, on
 * both sides: method numbers, records, their sizes, buffers and their limits.
 *
 * A call is FastRPC's: [record in][buffers in …][record out][buffers out …][sentence]. Records hold little-endian
 * integers without padding; each record in begins with the ABI's version, each record out with what became of the call
 * (enum hvdc_failure_kind). A call that the DSP understood returns 0, also where the engine refused: then `kind` says
 * which kind of failure it is, and the sentence which. Any other result is FastRPC's own, or the skel's word for a
 * malformed call (remote.h), and nothing is in the records.
 *
 * Memory that both sides use crosses as a descriptor, once (map), then as the number of that region and an offset. */
#ifndef HVDC_RPC_INTERFACE_H
#define HVDC_RPC_INTERFACE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "hvdc/npu.h"

/* Of records and of what calls mean; both sides compare it in every call. */
#define HVDC_RPC_ABI 3u

#define HVDC_RPC_SENTENCE_BYTES ((uint32_t)HVDC_FAILURE_MESSAGE_BYTES)
#define HVDC_RPC_VERSION_BYTES 16u /* of the runtime's version, with a zero byte behind it */
#define HVDC_RPC_SHA256_BYTES sizeof(((const hvdc_header *)0)->index_sha256)
/* Mapped at once, at most. An artifact has a region for each block and some more, about 40; more than 256 are of no use
 * to anybody, and would only cost the DSP a longer table. */
#define HVDC_RPC_REGIONS 256u
#define HVDC_RPC_NO_REGION 0xffffffffu
#define HVDC_RPC_ALIGNMENT 128u /* of what lies in a region: offsets are multiples of it */
#define HVDC_RPC_MAX_THREADS 16u
#define HVDC_RPC_MAX_TEXT_BYTES (UINT32_C(1) << 28)
#define HVDC_RPC_MAX_FILES (UINT32_C(1) << 16)

/* METHOD(name), in the order of their numbers; the first is HVDC_RPC_FIRST: 0 and 1 are FastRPC's open and close. */
#define HVDC_RPC_FIRST 2u
#define HVDC_RPC_METHODS(METHOD) \
    METHOD(hello)        /* versions of both sides; the artifact that will be executed */ \
    METHOD(power)        /* clocks, vector and matrix unit on or off */ \
    METHOD(map)          /* a descriptor of the caller's becomes a region */ \
    METHOD(unmap)        /* … and no more; refused while the artifact or the engine needs it */ \
    METHOD(attach)       /* the artifact: its index, and the region of each of its files */ \
    METHOD(open_engine)  /* the NPU executor for a clip; takes VTCM and the matrix unit */ \
    METHOD(set_text)     /* hvdc/engine.h */ \
    METHOD(run)          /* hvdc/engine.h, in place in a region that is writable */ \
    METHOD(measure)      /* bytes that the engine holds, seconds of each of its stages */ \
    METHOD(close_engine) /* regions and artifact stay */ \
    METHOD(selftest)     /* selftest.h: of the units, which no engine may hold */ \
    METHOD(invert)       /* bytes of a region that is writable: each is read, and its complement written */

/* Fields: U32(name), U64(name), BYTES(name, count). U64 at multiples of 8; every record at multiples of 8 in size. */
#define HVDC_RPC_IN_hello(U32, U64, BYTES) \
    U32(abi) U32(unused) BYTES(version, HVDC_RPC_VERSION_BYTES) BYTES(index_sha256, HVDC_RPC_SHA256_BYTES)
#define HVDC_RPC_OUT_hello(U32, U64, BYTES) \
    U32(kind) U32(abi) U32(arch) U32(contexts) U32(vtcm_bytes) U32(unused) BYTES(version, HVDC_RPC_VERSION_BYTES)
#define HVDC_RPC_IN_power(U32, U64, BYTES) U32(abi) U32(up)
#define HVDC_RPC_OUT_power(U32, U64, BYTES) U32(kind) U32(unused)
#define HVDC_RPC_IN_map(U32, U64, BYTES) U32(abi) U32(fd) U64(bytes) U32(writable) U32(unused)
#define HVDC_RPC_OUT_map(U32, U64, BYTES) U32(kind) U32(region) U64(address)
#define HVDC_RPC_IN_unmap(U32, U64, BYTES) U32(abi) U32(region)
#define HVDC_RPC_OUT_unmap(U32, U64, BYTES) U32(kind) U32(unused)
#define HVDC_RPC_IN_attach(U32, U64, BYTES) U32(abi) U32(unused)
#define HVDC_RPC_OUT_attach(U32, U64, BYTES) U32(kind) U32(unused)
#define HVDC_RPC_IN_open_engine(U32, U64, BYTES) \
    U32(abi) \
    U32(threads) \
    U32(vtcm_bytes) U32(sums) U32(frames) U32(rows) U32(columns) U32(rotations_region) U64(rotations_offset)
#define HVDC_RPC_OUT_open_engine(U32, U64, BYTES) U32(kind) U32(tokens) U32(vtcm_bytes) U32(unused)
#define HVDC_RPC_IN_set_text(U32, U64, BYTES) U32(abi) U32(expert)
#define HVDC_RPC_OUT_set_text(U32, U64, BYTES) U32(kind) U32(unused)
#define HVDC_RPC_IN_run(U32, U64, BYTES) U32(abi) U32(step) U32(first) U32(count) U32(region) U32(unused) U64(offset)
#define HVDC_RPC_OUT_run(U32, U64, BYTES) U32(kind) U32(unused)
#define HVDC_RPC_IN_measure(U32, U64, BYTES) U32(abi) U32(unused)
#define HVDC_RPC_OUT_measure(U32, U64, BYTES) U32(kind) U32(unused) U64(memory_bytes)
#define HVDC_RPC_IN_close_engine(U32, U64, BYTES) U32(abi) U32(unused)
#define HVDC_RPC_OUT_close_engine(U32, U64, BYTES) U32(kind) U32(unused)
#define HVDC_RPC_IN_selftest(U32, U64, BYTES) U32(abi) U32(vtcm_bytes)
#define HVDC_RPC_OUT_selftest(U32, U64, BYTES) U32(kind) U32(failed) U32(worthless) U32(unused)
#define HVDC_RPC_IN_invert(U32, U64, BYTES) U32(abi) U32(region) U64(offset) U64(bytes)
#define HVDC_RPC_OUT_invert(U32, U64, BYTES) U32(kind) U32(unused)

/* BUFFER(name, bytes of an element, bytes at least, bytes at most): GIVEN in, TAKEN out, the sentence apart. */
#define HVDC_RPC_GIVEN_hello(BUFFER)
#define HVDC_RPC_TAKEN_hello(BUFFER)
#define HVDC_RPC_GIVEN_power(BUFFER)
#define HVDC_RPC_TAKEN_power(BUFFER)
#define HVDC_RPC_GIVEN_map(BUFFER)
#define HVDC_RPC_TAKEN_map(BUFFER)
#define HVDC_RPC_GIVEN_unmap(BUFFER)
#define HVDC_RPC_TAKEN_unmap(BUFFER)
#define HVDC_RPC_GIVEN_attach(BUFFER) \
    BUFFER(index, 1, 1, HVDC_MAX_INDEX_BYTES) \
    BUFFER(regions, sizeof(uint32_t), sizeof(uint32_t), HVDC_RPC_MAX_FILES * sizeof(uint32_t))
#define HVDC_RPC_TAKEN_attach(BUFFER)
#define HVDC_RPC_GIVEN_open_engine(BUFFER)
#define HVDC_RPC_TAKEN_open_engine(BUFFER)
#define HVDC_RPC_GIVEN_set_text(BUFFER) BUFFER(text, sizeof(float), sizeof(float), HVDC_RPC_MAX_TEXT_BYTES)
#define HVDC_RPC_TAKEN_set_text(BUFFER)
#define HVDC_RPC_GIVEN_run(BUFFER)
#define HVDC_RPC_TAKEN_run(BUFFER)
#define HVDC_RPC_GIVEN_measure(BUFFER)
#define HVDC_RPC_SECONDS_BYTES ((uint32_t)(HVDC_NPU_STAGE_COUNT * sizeof(double)))
#define HVDC_RPC_TAKEN_measure(BUFFER) BUFFER(seconds, sizeof(double), HVDC_RPC_SECONDS_BYTES, HVDC_RPC_SECONDS_BYTES)
#define HVDC_RPC_GIVEN_close_engine(BUFFER)
#define HVDC_RPC_TAKEN_close_engine(BUFFER)
#define HVDC_RPC_GIVEN_selftest(BUFFER)
#define HVDC_RPC_REPORT_BYTES 16384u
#define HVDC_RPC_TAKEN_selftest(BUFFER) BUFFER(report, 1, HVDC_RPC_REPORT_BYTES, HVDC_RPC_REPORT_BYTES)
#define HVDC_RPC_GIVEN_invert(BUFFER)
#define HVDC_RPC_TAKEN_invert(BUFFER)

/* From here on, what follows from it. HVDC_RPC_hello is a method's number, hvdc_rpc_hello_in its record. */
enum hvdc_rpc_method {
    HVDC_RPC_BEFORE_FIRST = HVDC_RPC_FIRST - 1u,
#define HVDC_RPC_NUMBER(name) HVDC_RPC_##name,
    HVDC_RPC_METHODS(HVDC_RPC_NUMBER)
#undef HVDC_RPC_NUMBER
        HVDC_RPC_END
};

#define HVDC_RPC_U32(name) uint32_t name;
#define HVDC_RPC_U64(name) uint64_t name;
#define HVDC_RPC_BYTES(name, count) uint8_t name[count];
/* Summands. NOLINTBEGIN(bugprone-macro-parentheses) */
#define HVDC_RPC_U32_BYTES(name) +4u
#define HVDC_RPC_U64_BYTES(name) +8u
#define HVDC_RPC_BYTES_BYTES(name, count) +(count)
/* NOLINTEND(bugprone-macro-parentheses) */
#define HVDC_RPC_RECORDS(name) \
    typedef struct hvdc_rpc_##name##_in { \
        HVDC_RPC_IN_##name(HVDC_RPC_U32, HVDC_RPC_U64, HVDC_RPC_BYTES) \
    } hvdc_rpc_##name##_in; \
    typedef struct hvdc_rpc_##name##_out { \
        HVDC_RPC_OUT_##name(HVDC_RPC_U32, HVDC_RPC_U64, HVDC_RPC_BYTES) \
    } hvdc_rpc_##name##_out; \
    static_assert(sizeof(hvdc_rpc_##name##_in) == \
                      0u HVDC_RPC_IN_##name(HVDC_RPC_U32_BYTES, HVDC_RPC_U64_BYTES, HVDC_RPC_BYTES_BYTES), \
                  "padding in a record"); \
    static_assert(sizeof(hvdc_rpc_##name##_out) == \
                      0u HVDC_RPC_OUT_##name(HVDC_RPC_U32_BYTES, HVDC_RPC_U64_BYTES, HVDC_RPC_BYTES_BYTES), \
                  "padding in a record"); \
    static_assert(sizeof(hvdc_rpc_##name##_in) % 8u == 0 && offsetof(hvdc_rpc_##name##_in, abi) == 0, "abi first"); \
    static_assert(sizeof(hvdc_rpc_##name##_out) % 8u == 0 && offsetof(hvdc_rpc_##name##_out, kind) == 0, \
                  "kind " \
                  "first");
HVDC_RPC_METHODS(HVDC_RPC_RECORDS)

static_assert(HVDC_RPC_END <= 32, "FastRPC counts methods in five bits");

#endif
