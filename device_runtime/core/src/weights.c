#include "hvdc/weights.h"

bool hvdc_weights_tensor(const hvdc_weights *weights, uint32_t tensor, hvdc_values *values) {
    const hvdc_tensor *record = hvdc_artifact_tensor(weights->artifact, tensor);
    hvdc_span span;
    if (record == NULL || !hvdc_artifact_tensor_span(weights->artifact, tensor, &span)) {
        return false;
    }
    const uint8_t *file = weights->files == NULL ? NULL : weights->files[record->file];
    *values = (hvdc_values){
        .data = file == NULL ? span.data : file + record->offset,
        .bytes = record->bytes,
        .record = record,
        .file = record->file,
        .offset = record->offset,
    };
    return true;
}

bool hvdc_weights_in_block(const hvdc_weights *weights, uint32_t block, const char *linear, const char *suffix,
                           hvdc_values *values, hvdc_failure *failure) {
    uint32_t tensor = hvdc_artifact_find_in_block(weights->artifact, block, linear, suffix);
    return hvdc_weights_tensor(weights, tensor, values) ||
           hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact has no tensor blocks.%u.%s.%s", (unsigned)block,
                     linear, suffix);
}

bool hvdc_weights_named(const hvdc_weights *weights, const char *name, hvdc_values *values, hvdc_failure *failure) {
    return hvdc_weights_tensor(weights, hvdc_artifact_find(weights->artifact, name), values) ||
           hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact has no tensor %s", name);
}
