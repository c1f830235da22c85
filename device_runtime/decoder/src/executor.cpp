#include "executor.h"

#include <algorithm>
#include <cstdio>

#include "builds.h"
#include "text.h"

namespace hvdc {

namespace {

const char next_prefix[] =
    "next_"; /* what a graph writes under it and a cache's name, the next call reads: FORMAT.md */

bool is_next(const std::string &name) { return name.compare(0, sizeof next_prefix - 1, next_prefix) == 0; }

std::string path_of(const char *directory, const char *file, const char *standard) {
    return std::string(directory) + "/" + (file == nullptr ? standard : file);
}

}  // namespace

Executor::Executor(const hvdc_artifact *artifact, const hvdc_decoder_options &options)
    : artifact_(artifact), allocator_(options), emulator_(options.emulator) {}

bool Executor::open(const hvdc_decoder_options &options, hvdc_failure *failure) {
    std::vector<uint32_t> tensors;
    if (!list_graphs(artifact_, &graphs_, &tensors, failure)) return false;
    if (options.libraries == nullptr)
        return fail(failure, HVDC_FAILURE_USAGE, "the decoder needs the directory of QNN's libraries: none was given");
    if (!backend_.open(path_of(options.libraries, options.backend_library, "libQnnHtp.so"), failure) ||
        !system_.open(path_of(options.libraries, options.system_library, "libQnnSystem.so"), failure) ||
        !read_binaries(options, tensors, failure))
        return false;
    const BinaryInfo &info = binaries_.front().info;
    if (!bind_graphs(binaries_, &graphs_, failure) || !backend_.start(info.soc, info.arch, emulator_, failure) ||
        !check_builds(binaries_, backend_.build(), &build_, failure) || !make_buffers(failure))
        return false;
    bound_.resize(graphs_.size());
    contexts_.resize(binaries_.size());
    return load(HVDC_DECODER_VARIANT_FIRST, failure) && load(HVDC_DECODER_VARIANT_LATER, failure);
}

bool Executor::read_binaries(const hvdc_decoder_options &options, const std::vector<uint32_t> &tensors,
                             hvdc_failure *failure) {
    for (const uint32_t tensor : tensors) {
        hvdc_span span;
        hvdc_error error;
        if (hvdc_artifact_opaque(artifact_, tensor, &span, &error) != HVDC_E_OK)
            return fail(failure, HVDC_FAILURE_ARTIFACT,
                        std::string(error.file) + " is not the binary that was compiled: " + error.message +
                            "; copy the artifact again");
        Binary binary;
        binary.tensor = tensor;
        binary.path = span.path;
        if (!read_metadata(system_, span, &binary.info, failure)) return false;
        if (emulator_ && binary.info.graphs.size() > 1)
            return fail(failure, HVDC_FAILURE_USAGE,
                        binary.path + " holds " + std::to_string(binary.info.graphs.size()) +
                            " graphs that share weights, and the x86 emulator crashes on such a binary: compile with "
                            "--set decoder_share_weights=false, or decode with hvdc decode");
        binaries_.push_back(binary);
    }
    return check_recorded(artifact_, binaries_, failure) &&
           check_devices(binaries_, options.soc, options.arch, failure);
}

/* --- buffers ---------------------------------------------------------------------------------------------------- */

bool Executor::is_cache(const std::string &name) const {
    for (const Graph &graph : graphs_)
        for (size_t i = 1; i < graph.inputs.size(); i++)
            if (graph.inputs[i].name == name) return true;
    return false;
}

/* Whether a variant begins with a graph. */
bool Executor::begins(const Graph &graph) const {
    return &graph == &graphs_.front() || (&graph)[-1].is_first() != graph.is_first();
}

/* The buffer of a port, where caches number `written` are written. Ports of one buffer have one name and one size, which
 * the artifact's reader checks of cuts and caches. A latent has a buffer of its own: an output may have its name. */
std::string Executor::buffer_name(const Graph &graph, const Port &port, bool reads, unsigned written) const {
    const std::string of_variant = (graph.is_first() ? "first " : "later ") + port.name;
    if (reads && &port == &graph.inputs.front()) return begins(graph) ? "latent of " + of_variant : of_variant;
    if (reads) return std::to_string(1 - written) + " " + port.name;
    const std::string cache = is_next(port.name) ? port.name.substr(sizeof next_prefix - 1) : "";
    return !cache.empty() && is_cache(cache) ? std::to_string(written) + " " + cache : of_variant;
}

bool Executor::make_buffer(const std::string &name, const Port &port, hvdc_failure *failure) {
    std::unique_ptr<Buffer> &buffer = buffers_[name];
    if (buffer != nullptr) return true;
    buffer = std::make_unique<Buffer>();
    return buffer->allocate(allocator_, port.bytes, failure);
}

bool Executor::make_buffers(hvdc_failure *failure) {
    for (const Graph &graph : graphs_) {
        for (const unsigned written : {0u, 1u}) {
            for (const Port &port : graph.inputs)
                if (!make_buffer(buffer_name(graph, port, true, written), port, failure)) return false;
            for (const Port &port : graph.outputs)
                if (!make_buffer(buffer_name(graph, port, false, written), port, failure)) return false;
        }
        Ends &ends = ends_[graph.is_first() ? 0 : 1];
        if (begins(graph)) {
            ends.latent_port = &graph.inputs.front();
            ends.latent = buffers_[buffer_name(graph, graph.inputs.front(), true, 0)].get();
        }
        ends.frames_port = &graph.outputs.front(); /* of the variant's last graph, in the end */
        ends.frames = buffers_[buffer_name(graph, graph.outputs.front(), false, 0)].get();
    }
    shares_ = std::all_of(buffers_.begin(), buffers_.end(), [](const auto &one) { return one.second->fd() >= 0; });
    if (!shares_) why_not_shared_ = "the allocator gave no descriptors";
    return true;
}

/* --- contexts --------------------------------------------------------------------------------------------------- */

bool Executor::uses(uint32_t variant, uint32_t binary) const {
    return std::any_of(graphs_.begin(), graphs_.end(), [variant, binary](const Graph &graph) {
        return graph.record->variant == variant && graph.binary == binary;
    });
}

bool Executor::load(uint32_t variant, hvdc_failure *failure) {
    for (uint32_t i = 0; i < contexts_.size(); i++)
        if (contexts_[i] == nullptr && uses(variant, i) && !load_binary(i, variant, failure)) return false;
    return true;
}

/* All contexts of one process have to fit into the memory that its process domain has: if this one does not, those that
 * `variant` does not need make room. */
bool Executor::load_binary(uint32_t binary, uint32_t variant, hvdc_failure *failure) {
    hvdc_span span;
    hvdc_error error;
    if (hvdc_artifact_opaque(artifact_, binaries_[binary].tensor, &span, &error) != HVDC_E_OK)
        return fail(failure, HVDC_FAILURE_ARTIFACT,
                    std::string(error.file) + " has changed since the artifact was opened: " + error.message);
    auto context = std::make_unique<Context>(backend_);
    qx_error refused = context->load(span);
    if (qx_code(refused) == QX_NO_MEMORY && free_others(variant)) refused = context->load(span);
    if (refused != QX_OK)
        return fail(failure, qx_code(refused) == QX_NO_MEMORY ? HVDC_FAILURE_MEMORY : HVDC_FAILURE_DEVICE,
                    "the NPU's backend does not load " + binaries_[binary].path + ": " + backend_.describe(refused));
    contexts_[binary] = std::move(context);
    if (bind(binary, failure)) return true;
    contexts_[binary].reset(); /* a loaded one is bound */
    return false;
}

/* Whether there was one. */
bool Executor::free_others(uint32_t variant) {
    bool freed = false;
    for (uint32_t i = 0; i < contexts_.size(); i++) {
        if (contexts_[i] == nullptr || uses(variant, i)) continue;
        for (size_t g = 0; g < graphs_.size(); g++)
            if (graphs_[g].binary == i) bound_[g] = Bound();
        contexts_[i].reset();
        freed = true;
    }
    return freed;
}

/* Gives the graphs of a loaded binary their tensors. Memory is registered for all graphs or for none: a cache that one
 * graph wrote through the driver's mapping is not read by another through a copy. */
bool Executor::bind(uint32_t binary, hvdc_failure *failure) {
    Context &context = *contexts_[binary];
    for (size_t g = 0; g < graphs_.size(); g++) {
        const Graph &graph = graphs_[g];
        if (graph.binary != binary) continue;
        Bound bound;
        qx_error refused = QX_OK;
        if (!context.retrieve(graph.name_in_binary, &bound.graph, failure)) return false;
        if (bind_side(context, graph, true, &bound, &refused) && bind_side(context, graph, false, &bound, &refused)) {
            bound_[g] = std::move(bound);
            continue;
        }
        shares_ = false;
        why_not_shared_ = backend_.describe(refused);
        for (uint32_t i = 0; i < contexts_.size(); i++) {
            if (contexts_[i] == nullptr) continue;
            if (!bind(i, failure)) return false;
            contexts_[i]->unshare();
        }
        return true;
    }
    return true;
}

/* False if the backend refused to register memory. */
bool Executor::bind_side(Context &context, const Graph &graph, bool reads, Bound *bound, qx_error *refused) {
    for (const unsigned written : {0u, 1u}) {
        std::vector<qx_tensor> &tensors = (reads ? bound->inputs : bound->outputs)[written];
        for (const Port &port : reads ? graph.inputs : graph.outputs) {
            const Buffer &buffer = *buffers_.at(buffer_name(graph, port, reads, written));
            qx_tensor tensor{};
            tensor.version = 1;
            tensor.body.id = port.id;
            tensor.body.name = port.name.c_str();
            tensor.body.type = reads ? QX_TENSOR_WRITE : QX_TENSOR_READ;
            tensor.body.dtype = port.qnn_dtype();
            tensor.body.quant.definition = QX_QUANT_DEFINED;
            tensor.body.quant.encoding = QX_QUANT_SCALE_OFFSET;
            tensor.body.quant.u.scale_offset.scale = port.record->scale;
            tensor.body.quant.u.scale_offset.offset = -static_cast<int32_t>(port.record->zero_point);
            tensor.body.rank = static_cast<uint32_t>(port.dims.size());
            tensor.body.dims = const_cast<uint32_t *>(port.dims.data()); /* which the library only reads */
            if (shares_) {
                tensor.body.memory_type = QX_MEMORY_HANDLE;
                *refused = context.share(buffer, port, &tensor.body.memory.handle);
                if (*refused != QX_OK) return false;
            } else {
                tensor.body.memory_type = QX_MEMORY_RAW;
                tensor.body.memory.raw.data = buffer.data();
                tensor.body.memory.raw.bytes = port.bytes;
            }
            tensors.push_back(tensor);
        }
    }
    return true;
}

/* --- running ---------------------------------------------------------------------------------------------------- */

bool Executor::run(uint32_t t, hvdc_failure *failure) {
    const uint32_t variant = t == 0 ? HVDC_DECODER_VARIANT_FIRST : HVDC_DECODER_VARIANT_LATER;
    if (!load(variant, failure)) return false;
    for (size_t g = 0; g < graphs_.size(); g++) {
        if (graphs_[g].record->variant != variant) continue;
        const std::vector<qx_tensor> &inputs = bound_[g].inputs[t % 2];
        std::vector<qx_tensor> &outputs = bound_[g].outputs[t % 2];
        const qx_error error =
            backend_.api().graph_execute(bound_[g].graph, inputs.data(), static_cast<uint32_t>(inputs.size()),
                                         outputs.data(), static_cast<uint32_t>(outputs.size()), nullptr, nullptr);
        if (error != QX_OK)
            return fail(failure, HVDC_FAILURE_DEVICE,
                        "the NPU does not execute graph " + graphs_[g].name + " on latent frame " + std::to_string(t) +
                            ": " + backend_.describe(error));
    }
    return true;
}

void Executor::describe(hvdc_decoder_facts *facts) const {
    *facts = hvdc_decoder_facts{};
    const std::string memory = shares_ ? "shared memory" : "client buffers: " + why_not_shared_;
    (void)snprintf(facts->backend_build, sizeof facts->backend_build, "%s", backend_.build().c_str());
    (void)snprintf(facts->binary_build, sizeof facts->binary_build, "%s", build_.c_str());
    (void)snprintf(facts->memory, sizeof facts->memory, "%s", memory.c_str());
    facts->memory_is_shared = shares_;
    facts->core_api[0] = backend_.core().major;
    facts->core_api[1] = backend_.core().minor;
    facts->core_api[2] = backend_.core().patch;
    facts->soc = binaries_.front().info.soc;
    facts->arch = binaries_.front().info.arch;
    facts->contexts = static_cast<uint32_t>(contexts_.size());
    for (const auto &context : contexts_) facts->contexts_loaded += context != nullptr ? 1 : 0;
    for (const auto &buffer : buffers_) facts->buffer_bytes += buffer.second->bytes();
}

}  // namespace hvdc
