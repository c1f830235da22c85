#include <stdio.h>

#include "npu_internal.h"

static bool bind_linear(const npu_engine *npu, uint32_t block, const char *name, uint32_t n, uint32_t k, bool adapted,
                        enum hvdc_linear_id id, npu_linear *linear, hvdc_failure *failure) {
    char bias[HVDC_TEXT_LIMIT + 1u];
    linear->id = id;
    (void)snprintf(bias, sizeof bias, "%.150s.bias", name);
    if (!hvdc_bind_weight(&npu->weights, block, name, "weight", n, k, &linear->base, failure) ||
        !hvdc_bind_vector(&npu->weights, block, bias, n, true, &linear->bias, failure)) {
        return false;
    }
    uint32_t rank = npu->geometry.rank;
    return !adapted || rank == 0u ||
           (hvdc_bind_weight(&npu->weights, block, name, "lora_A.weight", rank, k, &linear->a, failure) &&
            hvdc_bind_weight(&npu->weights, block, name, "lora_B.weight", n, rank, &linear->b, failure));
}

/* `first`: its to_q; the others follow in the order below. */
static bool bind_attention(const npu_engine *npu, uint32_t block, const char *name, enum hvdc_linear_id first,
                           npu_attention *attention, hvdc_failure *failure) {
    struct {
        const char *name;
        npu_linear *linear;
    } linears[] = {{"to_q", &attention->to_q},
                   {"to_k", &attention->to_k},
                   {"to_v", &attention->to_v},
                   {"to_out.0", &attention->to_out}};
    struct {
        const char *name;
        const float **gain;
    } norms[] = {{"norm_q", &attention->norm_q}, {"norm_k", &attention->norm_k}};
    char full[HVDC_TEXT_LIMIT + 1u];
    uint32_t width = npu->geometry.width;
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        (void)snprintf(full, sizeof full, "%.100s.%.50s", name, linears[i].name);
        if (!bind_linear(npu, block, full, width, width, true, (enum hvdc_linear_id)(first + i), linears[i].linear,
                         failure)) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        (void)snprintf(full, sizeof full, "%.100s.%.50s.weight", name, norms[i].name);
        if (!hvdc_bind_vector(&npu->weights, block, full, width, false, norms[i].gain, failure)) {
            return false;
        }
    }
    return true;
}

bool npu_bind_block(const npu_engine *npu, uint32_t block, npu_block *bound, hvdc_failure *failure) {
    uint32_t width = npu->geometry.width, ffn = npu->geometry.ffn_width;
    if (!bind_attention(npu, block, "attn1", HVDC_SELF_Q, &bound->self, failure) ||
        !bind_attention(npu, block, "attn2", HVDC_CROSS_Q, &bound->cross, failure) ||
        !bind_linear(npu, block, "ffn.net.0.proj", ffn, width, false, HVDC_FFN_UP, &bound->up, failure) ||
        !bind_linear(npu, block, "ffn.net.2", width, ffn, false, HVDC_FFN_DOWN, &bound->down, failure)) {
        return false;
    }
    char name[HVDC_TEXT_LIMIT + 1u];
    (void)snprintf(name, sizeof name, "blocks.%u.norm2.weight", (unsigned)block);
    if (hvdc_artifact_find(npu->weights.artifact, name) == HVDC_NONE) {
        return true; /* the model has no such norm */
    }
    return hvdc_bind_vector(&npu->weights, block, "norm2.weight", width, false, &bound->norm2_gain, failure) &&
           hvdc_bind_vector(&npu->weights, block, "norm2.bias", width, false, &bound->norm2_bias, failure);
}
