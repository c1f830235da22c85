#include "buffers.h"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "text.h"

namespace hvdc {

namespace {

bool refuse(uint64_t bytes, hvdc_failure *failure) {
    return fail(failure, HVDC_FAILURE_MEMORY,
                "there is no memory for " + std::to_string(bytes) +
                    " bytes of a decoder's input or output: " + strerror(errno));
}

bool allocate_memfd(void *, uint64_t bytes, hvdc_decoder_buffer *buffer, hvdc_failure *failure) {
    const int fd = memfd_create("hvdc-decoder", MFD_CLOEXEC);
    if (fd < 0) return refuse(bytes, failure);
    void *data = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0)
        data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        refuse(bytes, failure);
        (void)close(fd);
        return false;
    }
    *buffer = {data, bytes, fd};
    return true;
}

void release_memfd(void *, hvdc_decoder_buffer *buffer) {
    (void)munmap(buffer->data, static_cast<size_t>(buffer->bytes));
    (void)close(buffer->fd);
}

}  // namespace

Allocator::Allocator(const hvdc_decoder_options &options)
    : allocate_(options.allocate == nullptr ? allocate_memfd : options.allocate),
      release_(options.allocate == nullptr ? release_memfd : options.release),
      user_(options.memory_user) {}

bool Allocator::allocate(uint64_t bytes, hvdc_decoder_buffer *buffer, hvdc_failure *failure) const {
    return allocate_(user_, bytes, buffer, failure);
}

void Allocator::release(hvdc_decoder_buffer *buffer) const { release_(user_, buffer); }

Buffer::~Buffer() {
    if (allocator_ != nullptr) allocator_->release(&buffer_);
}

bool Buffer::allocate(const Allocator &allocator, uint64_t bytes, hvdc_failure *failure) {
    if (!allocator.allocate(bytes, &buffer_, failure)) return false;
    allocator_ = &allocator;
    if (buffer_.data != nullptr && buffer_.bytes >= bytes) return true;
    return fail(failure, HVDC_FAILURE_MEMORY,
                "the allocator of the decoder's buffers gave " + std::to_string(buffer_.bytes) + " bytes of the " +
                    std::to_string(bytes) + " that it was asked for");
}

}  // namespace hvdc
