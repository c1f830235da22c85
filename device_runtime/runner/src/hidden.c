#include "hidden.h"

#include <stdlib.h>

bool hvdc_hidden_open(hvdc_hidden *hidden, const hvdc_engine *engine, const char *name, size_t count,
                      hvdc_failure *failure) {
    *hidden = HVDC_NO_HIDDEN;
    if (engine->share == NULL) {
        hidden->values = malloc(count * sizeof(float));
        return hidden->values != NULL ||
               hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a hidden state");
    }
    hidden->kind = hvdc_memory_choose(failure);
    if (hidden->kind == NULL || !hidden->kind->create(name, count * sizeof(float), &hidden->memory, failure))
        return false;
    hidden->values = (float *)(void *)hidden->memory.data;
    if (hidden->kind->begin_write(&hidden->memory, failure)) return true;
    hvdc_hidden_close(hidden, NULL);
    return false;
}

bool hvdc_hidden_share(hvdc_hidden *hidden, hvdc_engine *engine, hvdc_failure *failure) {
    if (hidden->memory.data == NULL) return true;
    hidden->announced = hidden->kind->end_write(&hidden->memory, failure) &&
                        engine->share(engine, hidden->memory.data, hidden->memory.bytes, hidden->memory.fd, failure);
    return hidden->announced;
}

void hvdc_hidden_close(hvdc_hidden *hidden, hvdc_engine *engine) {
    if (engine != NULL && hidden->announced) engine->unshare(engine, hidden->memory.data);
    if (hidden->memory.data != NULL) {
        hidden->kind->close(&hidden->memory);
    } else {
        free(hidden->values);
    }
    *hidden = HVDC_NO_HIDDEN;
}
