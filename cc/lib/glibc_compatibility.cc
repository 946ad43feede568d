// Definitions that newer compilers and C libraries refer to and older standard libraries lack, so that the library runs
// wherever TensorFlow does. No other library sees them.

#include <new>

// While it is true, std::shared_ptr counts without atomic operations. The C++ library asks for glibc's variable of that
// meaning, which glibc has from 2.32 on; the build gives it this name instead. TensorFlow always has threads.
extern "C" {
[[gnu::visibility("hidden")]] extern char tf_cg_ops_has_one_thread;
char tf_cg_ops_has_one_thread = 0;
}

// GCC 11: what `new T[n]` throws where n is too large.
extern "C" [[noreturn, gnu::visibility("hidden")]] void ThrowBadArrayNewLength() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
extern "C" void ThrowBadArrayNewLength() { throw std::bad_array_new_length(); }
