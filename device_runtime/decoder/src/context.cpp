#include "context.h"

#include "text.h"

namespace hvdc {

Context::~Context() {
    unshare();
    if (context_ != nullptr) (void)backend_.api().context_free(context_, nullptr);
}

qx_error Context::load(const hvdc_span &binary) {
    const qx_error error = backend_.api().context_from_binary(backend_.backend(), backend_.device(), nullptr,
                                                              binary.data, binary.bytes, &context_, nullptr);
    if (error != QX_OK) context_ = nullptr; /* a refused call may leave a handle that must not be freed */
    return error;
}

bool Context::retrieve(const std::string &name, qx_handle *graph, hvdc_failure *failure) const {
    const qx_error error = backend_.api().graph_retrieve(context_, name.c_str(), graph);
    if (error == QX_OK) return true;
    return fail(failure, HVDC_FAILURE_DEVICE,
                "the NPU's backend does not find graph " + name + " in its binary: " + backend_.describe(error));
}

qx_error Context::share(const Buffer &buffer, const Port &port, qx_handle *handle) {
    const auto known = shared_.find(&buffer);
    if (known != shared_.end()) {
        *handle = known->second;
        return QX_OK;
    }
    std::vector<uint32_t> dims = port.dims; /* the interface wants to be able to write */
    qx_memory memory{};
    memory.rank = static_cast<uint32_t>(dims.size());
    memory.dims = dims.data();
    memory.dtype = port.qnn_dtype();
    memory.type = QX_REGISTER_ION;
    memory.u.ion_fd = buffer.fd();
    const qx_error error = backend_.api().memory_register(context_, &memory, 1, handle);
    if (error == QX_OK) shared_[&buffer] = *handle;
    return error;
}

void Context::unshare() {
    for (const auto &one : shared_) (void)backend_.api().memory_deregister(&one.second, 1);
    shared_.clear();
}

}  // namespace hvdc
