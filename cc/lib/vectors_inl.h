// Vectors of TF_CG_OPS_VECTOR_BYTES: loads, products and stores. Only block_kernels_inl.h includes this file, once for
// each instruction set.

// Vectors of W, the type of products or sums (float or double).
template <typename W>
struct VectorOf {
  typedef W Type __attribute__((vector_size(TF_CG_OPS_VECTOR_BYTES)));
  static constexpr int kLanes = TF_CG_OPS_VECTOR_BYTES / sizeof(W);
};
template <typename W>
using Vector = typename VectorOf<W>::Type;

// Types of half the size, which are converted to a full vector.
typedef float FloatsToWiden __attribute__((vector_size(TF_CG_OPS_VECTOR_BYTES / 2)));
typedef uint16_t Bits16 __attribute__((vector_size(TF_CG_OPS_VECTOR_BYTES / 2)));
typedef uint32_t Bits32 __attribute__((vector_size(TF_CG_OPS_VECTOR_BYTES)));
typedef int32_t Int32 __attribute__((vector_size(TF_CG_OPS_VECTOR_BYTES)));

template <typename V, typename R>
inline V LoadAs(const R* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <typename V, typename R>
inline void StoreAs(V v, R* to) {
  __builtin_memcpy(to, &v, sizeof(V));
}

template <typename To, typename From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a vector of the same size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Conversions between lanes of different sizes, for which GCC would compile __builtin_convertvector to several
// instructions. (The AVX-512 ones are masked with all lanes, because GCC warns about the unmasked form in its header.)
#if TF_CG_OPS_VECTOR_BYTES == 64
inline Vector<double> Widened(FloatsToWiden v) {
  return BitCast<Vector<double>>(_mm512_maskz_cvtps_pd(0xff, BitCast<__m256>(v)));
}
inline FloatsToWiden Narrowed(Vector<double> v) {
  return BitCast<FloatsToWiden>(_mm512_maskz_cvtpd_ps(0xff, BitCast<__m512d>(v)));
}
inline Bits32 Widened(Bits16 v) { return BitCast<Bits32>(_mm512_maskz_cvtepu16_epi32(0xffff, BitCast<__m256i>(v))); }
// The upper half of each lane is zero.
inline Bits16 Narrowed(Bits32 v) { return BitCast<Bits16>(_mm512_maskz_cvtepi32_epi16(0xffff, BitCast<__m512i>(v))); }
#elif TF_CG_OPS_VECTOR_BYTES == 32
inline Vector<double> Widened(FloatsToWiden v) { return BitCast<Vector<double>>(_mm256_cvtps_pd(BitCast<__m128>(v))); }
inline FloatsToWiden Narrowed(Vector<double> v) { return BitCast<FloatsToWiden>(_mm256_cvtpd_ps(BitCast<__m256d>(v))); }
inline Bits32 Widened(Bits16 v) { return BitCast<Bits32>(_mm256_cvtepu16_epi32(BitCast<__m128i>(v))); }
inline Bits16 Narrowed(Bits32 v) {
  const __m256i packed =
      _mm256_packus_epi32(BitCast<__m256i>(v), BitCast<__m256i>(v));  // Works on each half of the register.
  return BitCast<Bits16>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
#elif defined(__x86_64__)
// Half a register is eight bytes in memory.
template <typename V>
inline __m128i InLowerHalf(V v) {
  int64_t bits;
  __builtin_memcpy(&bits, &v, sizeof(bits));
  return _mm_cvtsi64_si128(bits);
}
template <typename V>
inline V LowerHalf(__m128i v) {
  return BitCast<V>(_mm_cvtsi128_si64(v));
}
inline Vector<double> Widened(FloatsToWiden v) {
  return BitCast<Vector<double>>(_mm_cvtps_pd(_mm_castsi128_ps(InLowerHalf(v))));
}
inline FloatsToWiden Narrowed(Vector<double> v) {
  return LowerHalf<FloatsToWiden>(_mm_castps_si128(_mm_cvtpd_ps(BitCast<__m128d>(v))));
}
inline Bits32 Widened(Bits16 v) { return BitCast<Bits32>(_mm_unpacklo_epi16(InLowerHalf(v), _mm_setzero_si128())); }
inline Bits16 Narrowed(Bits32 v) {
  // The instruction packs signed numbers only, so the upper half gets the sign of the 16 bits.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(BitCast<__m128i>(v), 16), 16);
  return LowerHalf<Bits16>(_mm_packs_epi32(extended, extended));
}
#else
inline Vector<double> Widened(FloatsToWiden v) { return __builtin_convertvector(v, Vector<double>); }
inline FloatsToWiden Narrowed(Vector<double> v) { return __builtin_convertvector(v, FloatsToWiden); }
inline Bits32 Widened(Bits16 v) { return __builtin_convertvector(v, Bits32); }
inline Bits16 Narrowed(Bits32 v) { return __builtin_convertvector(v, Bits16); }
#endif

inline Bits32 Select(Bits32 mask, Bits32 yes, Bits32 no) { return (mask & yes) | (~mask & no); }

inline void Load(const float* from, Vector<float>* to) { *to = LoadAs<Vector<float>>(from); }
inline void Load(const double* from, Vector<double>* to) { *to = LoadAs<Vector<double>>(from); }
inline void Load(const float* from, Vector<double>* to) { *to = Widened(LoadAs<FloatsToWiden>(from)); }
inline void Load(const BFloat16* from, Vector<float>* to) {
  *to = BitCast<Vector<float>>(Widened(LoadAs<Bits16>(from)) << 16);
}

inline void Store(Vector<float> v, float* to) { StoreAs(v, to); }
inline void Store(Vector<double> v, double* to) { StoreAs(v, to); }
inline void Store(Vector<double> v, float* to) { StoreAs(Narrowed(v), to); }
inline void Store(Vector<float> v, BFloat16* to) {
  const Bits32 bits = BitCast<Bits32>(v);
  // Rounds to nearest, ties to even: adds half a unit in the last place, or slightly less if that is even.
  const Bits32 rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Bits32 nan = (bits & 0x80000000u) | 0x7fc00000u;
  const Bits32 is_nan = BitCast<Bits32>(v != v);
  StoreAs(Narrowed(Select(is_nan, nan, rounded) >> 16), to);
}

#if TF_CG_OPS_VECTOR_BYTES == 64
inline void Load(const Half* from, Vector<float>* to) {
  *to = BitCast<Vector<float>>(_mm512_maskz_cvtph_ps(0xffff, LoadAs<__m256i>(from)));
}
inline void Store(Vector<float> v, Half* to) {
  StoreAs(_mm512_maskz_cvtps_ph(0xffff, BitCast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), to);
}
#elif TF_CG_OPS_VECTOR_BYTES == 32
inline void Load(const Half* from, Vector<float>* to) {
  *to = BitCast<Vector<float>>(_mm256_cvtph_ps(LoadAs<__m128i>(from)));
}
inline void Store(Vector<float> v, Half* to) {
  StoreAs(_mm256_cvtps_ph(BitCast<__m256>(v), _MM_FROUND_TO_NEAREST_INT), to);
}
#else
// Computes with integers where a float could be subnormal, because TensorFlow's threads flush such floats to zero.
inline void Load(const Half* from, Vector<float>* to) {
  const Bits32 bits = Widened(LoadAs<Bits16>(from));
  const Bits32 magnitude = (bits & 0x7fff) << 13;
  const Bits32 exponent = magnitude & (0x1fu << 23);
  const Bits32 is_special = BitCast<Bits32>(exponent == (0x1fu << 23));
  const Bits32 is_subnormal = BitCast<Bits32>(exponent == 0);
  // Changes half's exponent bias of 15 to float's of 127; infinities and nans get the largest exponent.
  const Bits32 normal = magnitude + ((127u - 15u) << 23) + (is_special & ((128u - 16u) << 23));
  // Puts a subnormal half into the fraction of a number with exponent -14, then subtracts that number.
  const Bits32 one = (Bits32{} + (113u << 23));
  const Bits32 subnormal = BitCast<Bits32>(BitCast<Vector<float>>(magnitude + one) - BitCast<Vector<float>>(one));
  *to = BitCast<Vector<float>>(Select(is_subnormal, subnormal, normal) | ((bits & 0x8000) << 16));
}
inline void Store(Vector<float> v, Half* to) {
  const Bits32 bits = BitCast<Bits32>(v);
  const Bits32 magnitude = bits & 0x7fffffffu;
  const Bits32 is_nan = BitCast<Bits32>(v != v);
  // 65520 and above round to infinity: it is half way between the largest half and the next power of two.
  const Bits32 is_large = BitCast<Bits32>(BitCast<Int32>(magnitude) >= 0x477ff000);
  const Bits32 is_small = BitCast<Bits32>(BitCast<Int32>(magnitude) < (113 << 23));
  // Rounds to nearest, ties to even, with the new bias.
  const Bits32 normal = (magnitude - ((127u - 15u) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 aligns the last place of a subnormal half with the last place of a float, so the addition rounds.
  const Bits32 half = Bits32{} + (126u << 23);
  const Bits32 small = BitCast<Bits32>(BitCast<Vector<float>>(magnitude) + BitCast<Vector<float>>(half)) - half;
  Bits32 result = Select(is_small, small, normal);
  result = Select(is_large, Bits32{} + 0x7c00u, result);
  result = Select(is_nan, Bits32{} + 0x7e00u, result);
  StoreAs(Narrowed(result | ((bits >> 16) & 0x8000u)), to);
}
#endif

// Stores the first `count` lanes of a vector.
template <typename V, typename R>
inline void StoreFirst(V v, int64_t count, R* to) {
  R all[sizeof(V) / sizeof(v[0])];
  Store(v, all);
  for (int64_t i = 0; i < count; ++i) to[i] = all[i];
}

// Stores a vector past the caches. The address is a multiple of the bytes stored.
template <typename V, typename R>
inline void Stream(V v, R* to) {
  R values[sizeof(V) / sizeof(v[0])];
  Store(v, values);
#if defined(__x86_64__)
#if TF_CG_OPS_VECTOR_BYTES == 64
  if constexpr (sizeof(values) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), LoadAs<__m512i>(values));
    return;
  }
#endif
#if TF_CG_OPS_VECTOR_BYTES >= 32
  if constexpr (sizeof(values) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), LoadAs<__m256i>(values));
    return;
  }
#endif
  if constexpr (sizeof(values) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), LoadAs<__m128i>(values));
    return;
  }
#endif
  __builtin_memcpy(to, values, sizeof(values));
}

// One row of an operand, as vectors of W. `is_row` as in Strided. Complex numbers are pairs of lanes.
template <typename T, typename W, bool is_row>
class Row {
 public:
  using Real = typename Arithmetic<T>::Real;
  static constexpr int kLanes = VectorOf<W>::kLanes;
  static constexpr int kReals = Arithmetic<T>::kReals;

  explicit Row(const Real* data) : data_(data) {
    if constexpr (!is_row) same_ = Last(kLanes, data);
  }

  // The vector that begins at real `i`.
  Vector<W> At(int64_t i) const {
    if constexpr (!is_row) return same_;
    Vector<W> v;
    Load(data_ + i, &v);
    return v;
  }

  // The same if only `count` reals are left, padded with zeros.
  Vector<W> LastAt(int64_t i, int64_t count) const { return Last(count, is_row ? data_ + i : data_); }

 private:
  static Vector<W> Last(int64_t count, const Real* data) {
    Real left[kLanes] = {};
    for (int64_t k = 0; k < count; ++k) left[k] = data[is_row ? k : k % kReals];
    Vector<W> v;
    Load(left, &v);
    return v;
  }

  const Real* data_;
  Vector<W> same_;
};

// The vector of the lanes `from` of v.
template <int... from, typename V>
inline V Shuffled(V v) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(v, v, from...);
#else  // GCC before 12.
  return V{v[from]...};
#endif
}

template <int... lanes>
struct Lanes {
  // For each pair (re, im): (re, re), (im, im) or (im, re).
  template <typename V>
  static V Reals(V v) {
    return Shuffled<(lanes & ~1)...>(v);
  }
  template <typename V>
  static V Imaginaries(V v) {
    return Shuffled<(lanes | 1)...>(v);
  }
  template <typename V>
  static V Swapped(V v) {
    return Shuffled<(lanes ^ 1)...>(v);
  }
  // Changes the sign of the real (part = 0) or the imaginary parts (part = 1).
  template <int part, typename V>
  static V Negated(V v) {
    return v * V{(lanes % 2 == part ? -1 : 1)...};
  }
};

template <int count, int... lanes>
struct LanesUpTo : LanesUpTo<count - 1, count - 1, lanes...> {};
template <int... lanes>
struct LanesUpTo<0, lanes...> : Lanes<lanes...> {};

// The products of a with b, or with the conjugate of b. operator* of std::complex would call a function that corrects
// infinities, which takes several times as long. NumPy does not correct them either.
template <typename T, bool conjugate, typename W>
inline Vector<W> Product(Vector<W> a, Vector<W> b) {
  if constexpr (Arithmetic<T>::kReals == 1) {
    return a * b;
  } else {
    using Pairs = LanesUpTo<VectorOf<W>::kLanes>;
    const Vector<W> by_real = Pairs::Reals(a) * b;
    const Vector<W> by_imaginary = Pairs::Imaginaries(a) * Pairs::Swapped(b);
    if constexpr (conjugate) return Pairs::template Negated<1>(by_real) + by_imaginary;
    return by_real + Pairs::template Negated<0>(by_imaginary);
  }
}
