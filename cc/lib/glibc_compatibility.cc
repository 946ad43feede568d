// Definitions that code from newer compilers needs and older standard libraries lack, because the library has to run on
// every machine that TensorFlow runs on. Other libraries do not see them.

#include <new>

// While this is true, std::shared_ptr counts references without atomic operations. The C++ library reads a variable of
// glibc 2.32 and newer; the build renames it to this one. It is always false, because TensorFlow has threads.
extern "C" {
[[gnu::visibility("hidden")]] extern char tf_cg_ops_has_one_thread;
char tf_cg_ops_has_one_thread = 0;
}

// GCC 11: throws the exception of `new T[n]` for an n that is too large.
extern "C" [[noreturn, gnu::visibility("hidden")]] void ThrowBadArrayNewLength() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
extern "C" void ThrowBadArrayNewLength() { throw std::bad_array_new_length(); }
