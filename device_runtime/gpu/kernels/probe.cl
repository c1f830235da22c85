/* Reads and writes of shared memory, by which a way of importing it is judged. */
kernel void copy_words(global const uint *restrict from, uint from_offset, global uint *restrict to, uint to_offset) {
    to[to_offset + get_global_id(0)] = from[from_offset + get_global_id(0)];
}
