// What newer compilers and C libraries refer to, for machines whose standard libraries do not have it yet. With these
// the library runs wherever TensorFlow does; no other library sees them.

#include <new>

// glibc 2.32: while it is true, std::shared_ptr counts without atomic operations. TensorFlow has threads.
extern "C" {
[[gnu::visibility("hidden")]] extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

// GCC 11: what `new T[n]` throws where n is too large.
extern "C" [[noreturn, gnu::visibility("hidden")]] void ThrowBadArrayNewLength() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
extern "C" void ThrowBadArrayNewLength() { throw std::bad_array_new_length(); }
