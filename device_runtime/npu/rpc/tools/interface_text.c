#include "interface_text.h"

#include <stdio.h>

#include "interface.h"

#define IN_U32(name) (void)printf("in " #name " 4\n");
#define IN_U64(name) (void)printf("in " #name " 8\n");
#define IN_BYTES(name, count) (void)printf("in " #name " %u\n", (unsigned)(count));
#define OUT_U32(name) (void)printf("out " #name " 4\n");
#define OUT_U64(name) (void)printf("out " #name " 8\n");
#define OUT_BYTES(name, count) (void)printf("out " #name " %u\n", (unsigned)(count));
#define BUFFER(way, name, element, least, most) \
    (void)printf(way " " name " %u %u %u\n", (unsigned)(element), (unsigned)(least), (unsigned)(most));
#define GIVEN(name, element, least, most) BUFFER("given", #name, element, least, most)
#define TAKEN(name, element, least, most) BUFFER("taken", #name, element, least, most)

void hvdc_print_interface(void) {
    (void)printf("version %s\n", HVDC_RUNTIME_VERSION);
    (void)printf("constant abi %u\n", HVDC_RPC_ABI);
    (void)printf("constant sentence_bytes %u\n", HVDC_RPC_SENTENCE_BYTES);
    (void)printf("constant no_region %u\n", HVDC_RPC_NO_REGION);
    (void)printf("constant regions %u\n", HVDC_RPC_REGIONS);
    (void)printf("constant alignment %u\n", HVDC_RPC_ALIGNMENT);
#define METHOD(name) \
    (void)printf("method %u " #name "\n", (unsigned)HVDC_RPC_##name); \
    HVDC_RPC_IN_##name(IN_U32, IN_U64, IN_BYTES) HVDC_RPC_OUT_##name(OUT_U32, OUT_U64, OUT_BYTES) \
        HVDC_RPC_GIVEN_##name(GIVEN) HVDC_RPC_TAKEN_##name(TAKEN)
    HVDC_RPC_METHODS(METHOD)
#undef METHOD
}
