/* What both halves of the stand-in for QNN share: qnn_stand_in.c says what it is. */
#ifndef QNN_STAND_IN_H
#define QNN_STAND_IN_H

#include <stdint.h>

#include "qnn_abi.h"

#define MAX_GRAPHS 8u
#define MAX_TENSORS 64u
#define MAX_NAME 100u

struct tensors {
    uint32_t count;
    qx_tensor tensor[MAX_TENSORS];
    char name[MAX_TENSORS][MAX_NAME];
    uint32_t dims[MAX_TENSORS][6];
    uint64_t number[MAX_TENSORS];
};

struct graph {
    char name[MAX_NAME];
    qx_htp_graph htp;
    struct tensors side[2];
};

struct binary {
    char build[MAX_NAME];
    uint32_t graph_count;
    struct graph graph[MAX_GRAPHS];
    qx_graph_info info[MAX_GRAPHS];
    qx_htp_context htp;
    qx_binary described;
};

/* The number behind "name=" in STAND_IN, or `otherwise`; *more, unless NULL, is what follows it. */
unsigned long stand_in_setting(const char *name, unsigned long otherwise, const char **more);

/* The end of the process. */
void stand_in_die(const char *what);

/* A context binary; NULL if this is none. */
struct binary *stand_in_parse(const void *data, uint64_t size);

#endif
