// The kernels for vector registers of TF_CG_OPS_VECTOR_BYTES. Each block_kernels_*.cc includes this file in a namespace
// of its own, so there is no include guard. The code calls only functions of this file and of vectors_inl.h, so all of
// it is compiled for one instruction set.
//
// Every loop has the same form: full vectors, then a remainder in a buffer padded with zeros.

#include "cc/lib/vectors_inl.h"

// Calls run(lhs is_row, rhs is_row, conjugate) with the flags of the block as types.
template <typename T, typename F>
inline void WithForm(const Block<T>& block, const F& run) {
  const auto with_rhs = [&](auto lhs, auto rhs) {
    if (Arithmetic<T>::kReals == 2 && block.conjugate) {
      run(lhs, rhs, std::bool_constant<Arithmetic<T>::kReals == 2>());
    } else {
      run(lhs, rhs, std::false_type());
    }
  };
  const auto with_lhs = [&](auto lhs) {
    if (block.rhs.is_row) {
      with_rhs(lhs, std::true_type());
    } else {
      with_rhs(lhs, std::false_type());
    }
  };
  if (block.lhs.is_row) {
    with_lhs(std::true_type());
  } else {
    with_lhs(std::false_type());
  }
}

template <typename T>
inline const typename Arithmetic<T>::Real* RowData(const Strided<T>& operand, int64_t row) {
  return reinterpret_cast<const typename Arithmetic<T>::Real*>(operand.data + row * operand.row_step);
}

// The most reals in packed rows; only whole rows are packed.
constexpr int64_t kPacked = 256;
// The most elements of any type in one vector.
constexpr int64_t kMaxLanes = TF_CG_OPS_VECTOR_BYTES / 2;

// The rows [first, first + rows) of an operand with narrow rows, side by side. Rows without gaps are not copied.
template <typename T>
inline const T* Pack(const Strided<T>& operand, int64_t columns, int64_t first, int64_t rows, T* buffer) {
  const T* from = operand.data + first * operand.row_step;
  if (operand.is_row && operand.row_step == columns) return from;
  T* to = buffer;
  for (int64_t row = 0; row < rows; ++row, from += operand.row_step, to += columns) {
    if (operand.is_row) {
      for (int64_t column = 0; column < columns; ++column) to[column] = from[column];
    } else {
      // A fixed count compiles to a few vectors. The next row overwrites the excess.
      for (int64_t column = 0; column < kNarrow; ++column) to[column] = *from;
    }
  }
  return buffer;
}

// Calls run(first row, number of rows, block) with blocks that pack several narrow rows into one row.
template <typename T, typename F>
inline void ForPacked(const Block<T>& block, const F& run) {
  constexpr int64_t kElements = kPacked / Arithmetic<T>::kReals;
  T lhs[kElements + kNarrow], rhs[kElements + kNarrow];
  const int64_t at_once = kElements / block.columns;
  Strided<T> packed_lhs = {nullptr, 0, true}, packed_rhs = {nullptr, 0, true};
  for (int64_t first = 0; first < block.rows; first += at_once) {
    const int64_t rows = block.rows - first < at_once ? block.rows - first : at_once;
    // An operand that is the same in all rows is packed once.
    if (first == 0 || block.lhs.row_step != 0) packed_lhs.data = Pack(block.lhs, block.columns, first, rows, lhs);
    if (first == 0 || block.rhs.row_step != 0) packed_rhs.data = Pack(block.rhs, block.columns, first, rows, rhs);
    run(first, rows, Block<T>{packed_lhs, packed_rhs, 1, rows * block.columns, /*is_narrow=*/false, block.conjugate});
  }
}

// The type for computing products that are stored as `To`: reals of T, or sums.
template <typename T, typename To>
using ProductFor = std::conditional_t<std::is_same_v<To, typename Arithmetic<T>::Real>, typename Arithmetic<T>::Product,
                                      typename Arithmetic<T>::Sum>;

template <typename T, bool lhs_is_row, bool rhs_is_row, bool conjugate, typename To>
inline void MultiplyRow(const Block<T>& block, int64_t row, bool stream, To* out) {
  using W = ProductFor<T, To>;
  constexpr int kLanes = VectorOf<W>::kLanes;
  const Row<T, W, lhs_is_row> lhs(RowData(block.lhs, row));
  const Row<T, W, rhs_is_row> rhs(RowData(block.rhs, row));
  const int64_t count = block.columns * Arithmetic<T>::kReals;
  const auto multiply_part = [&](int64_t i, int64_t n) {
    StoreFirst(Product<T, conjugate, W>(lhs.LastAt(i, n), rhs.LastAt(i, n)), n, out + i);
  };
  int64_t i = 0;
  if (stream) {
    const int64_t bytes = kLanes * sizeof(*out);
    const int64_t to_boundary = (bytes - reinterpret_cast<uintptr_t>(out) % bytes) % bytes / sizeof(*out);
    if (to_boundary < count && to_boundary % Arithmetic<T>::kReals == 0 &&
        reinterpret_cast<uintptr_t>(out) % sizeof(*out) == 0) {
      multiply_part(0, to_boundary);
      for (i = to_boundary; i + kLanes <= count; i += kLanes) {
        Stream(Product<T, conjugate, W>(lhs.At(i), rhs.At(i)), out + i);
      }
    }
  }
  for (; i + kLanes <= count; i += kLanes) Store(Product<T, conjugate, W>(lhs.At(i), rhs.At(i)), out + i);
  if (i < count) multiply_part(i, count - i);
}

// Multiplies narrow rows in full vectors, which write beyond the end of a row; the next row overwrites the excess. out
// must not be an operand.
template <typename T, typename To>
inline void MultiplyNarrowRows(const Block<T>& block, To* to) {
  using W = ProductFor<T, To>;
  constexpr int kLanes = VectorOf<W>::kLanes;
  const int64_t reals = block.columns * Arithmetic<T>::kReals;
  const int64_t reach = (reals + kLanes - 1) / kLanes * kLanes;
  WithForm(block, [&](auto lhs_is_row, auto rhs_is_row, auto conjugate) {
    int64_t row = 0;
    for (; (block.rows - row) * reals >= reach; ++row, to += reals) {
      const Row<T, W, lhs_is_row.value> lhs(RowData(block.lhs, row));
      const Row<T, W, rhs_is_row.value> rhs(RowData(block.rhs, row));
      for (int64_t i = 0; i < reals; i += kLanes) {
        Store(Product<T, conjugate.value, W>(lhs.At(i), rhs.At(i)), to + i);
      }
    }
    for (; row < block.rows; ++row, to += reals) {
      MultiplyRow<T, lhs_is_row.value, rhs_is_row.value, conjugate.value>(block, row, /*stream=*/false, to);
    }
  });
}

// A row that all rows of products share, copied to memory where a vector can be read beyond its end.
template <typename T>
inline Strided<T> WithPadding(const Strided<T>& operand, int64_t columns, T* buffer) {
  if (!operand.is_row || operand.row_step != 0) return operand;
  for (int64_t column = 0; column < columns; ++column) buffer[column] = operand.data[column];
  return {buffer, 0, true};
}

template <typename T, typename To>
inline void MultiplyBlock(const Block<T>& block, bool stream, To* out) {
  const int64_t reals = block.columns * Arithmetic<T>::kReals;
  if (block.is_narrow) {
    T lhs[kNarrow + kMaxLanes] = {}, rhs[kNarrow + kMaxLanes] = {};
    const Block<T> padded = {WithPadding(block.lhs, block.columns, lhs),
                             WithPadding(block.rhs, block.columns, rhs),
                             block.rows,
                             block.columns,
                             block.is_narrow,
                             block.conjugate};
    const auto may_be_overrun = [&](const Strided<T>& operand) {
      return !operand.is_row || operand.row_step == 0 || operand.row_step == block.columns;
    };
    if (may_be_overrun(block.lhs) && may_be_overrun(block.rhs)) {
      MultiplyNarrowRows(padded, out);
    } else {
      ForPacked(block, [&](int64_t first, int64_t, const Block<T>& packed) {
        MultiplyBlock(packed, stream, out + first * reals);
      });
    }
    return;
  }
  WithForm(block, [&](auto lhs, auto rhs, auto conjugate) {
    for (int64_t row = 0; row < block.rows; ++row) {
      MultiplyRow<T, lhs.value, rhs.value, conjugate.value>(block, row, stream, out + row * reals);
    }
  });
#if defined(__x86_64__)
  if (stream) _mm_sfence();
#endif
}

template <typename T>
void MultiplyElements(const Block<T>& block, bool stream, T* out) {
  MultiplyBlock(block, stream, reinterpret_cast<typename Arithmetic<T>::Real*>(out));
}

template <typename T>
void MultiplyIntoSums(const Block<T>& block, typename Arithmetic<T>::Sum* out) {
  MultiplyBlock(block, /*stream=*/false, out);
}

// Reals in one line of the caches.
template <typename T>
constexpr int64_t kLine = 64 / sizeof(typename Arithmetic<T>::Real);
// How far ahead the operands of a sum are prefetched: with 16 or 32 lines, a sum of columns is a tenth slower.
template <typename T>
constexpr int64_t kAhead = 64 * kLine<T>;

// Prefetches the line kAhead after real `i` of a row, or in the row `next_row` if this row ends before. The line is
// read once, so it should evict neither the sums nor a row that all rows share. Shared rows are not prefetched, nor are
// short rows with gaps, where the line would not be read. Prefetching beyond the operand is harmless.
template <typename T>
inline void ReadAhead(const Strided<T>& operand, int64_t columns, int64_t row, int64_t next_row, int64_t i) {
  const int64_t count = columns * Arithmetic<T>::kReals;
  if (operand.row_step == 0 || (operand.row_step != columns && count <= kAhead<T>)) return;
  const int64_t ahead = i + kAhead<T>;
  __builtin_prefetch(ahead < count ? RowData(operand, row) + ahead : RowData(operand, next_row) + (ahead - count),
                     /*rw=*/0, /*locality=*/0);
}

// sums[column] += the products of one row, or of two, one after the other.
template <typename T, bool lhs_is_row, bool rhs_is_row, bool conjugate, int kRows>
inline void AddRowsToColumns(const Block<T>& block, int64_t row, typename Arithmetic<T>::Sum* sums) {
  using W = typename Arithmetic<T>::Sum;
  constexpr int kLanes = VectorOf<W>::kLanes;
  const int64_t last = row + kRows - 1;
  const Row<T, W, lhs_is_row> lhs(RowData(block.lhs, row)), last_lhs(RowData(block.lhs, last));
  const Row<T, W, rhs_is_row> rhs(RowData(block.rhs, row)), last_rhs(RowData(block.rhs, last));
  const int64_t count = block.columns * Arithmetic<T>::kReals;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    if (i % kLine<T> == 0) {
      for (int64_t r = row; r <= last; ++r) {
        if (lhs_is_row) ReadAhead(block.lhs, block.columns, r, r + kRows, i);
        if (rhs_is_row) ReadAhead(block.rhs, block.columns, r, r + kRows, i);
      }
    }
    Vector<W> sum;
    Load(sums + i, &sum);
    sum += Product<T, conjugate, W>(lhs.At(i), rhs.At(i));
    if (kRows == 2) sum += Product<T, conjugate, W>(last_lhs.At(i), last_rhs.At(i));
    Store(sum, sums + i);
  }
  if (const int64_t n = count - i; n > 0) {
    W left[kLanes] = {};
    for (int64_t k = 0; k < n; ++k) left[k] = sums[i + k];
    Vector<W> sum;
    Load(left, &sum);
    sum += Product<T, conjugate, W>(lhs.LastAt(i, n), rhs.LastAt(i, n));
    if (kRows == 2) sum += Product<T, conjugate, W>(last_lhs.LastAt(i, n), last_rhs.LastAt(i, n));
    StoreFirst(sum, n, sums + i);
  }
}

template <typename T>
void AddToColumns(const Block<T>& block, typename Arithmetic<T>::Sum* sums) {
  if (block.is_narrow) {
    // Sums each position of the packed rows, then the positions of each column.
    typename Arithmetic<T>::Sum packed_sums[kPacked] = {};
    const int64_t reals = block.columns * Arithmetic<T>::kReals;
    const int64_t at_once = kPacked / reals;
    ForPacked(block, [&](int64_t, int64_t, const Block<T>& packed) { AddToColumns(packed, packed_sums); });
    for (int64_t i = 0; i < at_once * reals; ++i) sums[i % reals] += packed_sums[i];
    return;
  }
  // If rows follow one another in memory, they are added one by one, because the processor prefetches best in one run.
  // Otherwise they are added in pairs, so that sums are read and written half as often.
  const auto is_one_run = [&](const Strided<T>& operand) {
    return operand.is_row && operand.row_step == block.columns;
  };
  const int64_t in_pairs = is_one_run(block.lhs) && is_one_run(block.rhs) ? 0 : block.rows / 2 * 2;
  WithForm(block, [&](auto lhs, auto rhs, auto conjugate) {
    int64_t row = 0;
    for (; row < in_pairs; row += 2) {
      AddRowsToColumns<T, lhs.value, rhs.value, conjugate.value, 2>(block, row, sums);
    }
    for (; row < block.rows; ++row) {
      AddRowsToColumns<T, lhs.value, rhs.value, conjugate.value, 1>(block, row, sums);
    }
  });
}

// *sum += the sum of the products in one row; for complex numbers, sum is a pair.
template <typename T, bool lhs_is_row, bool rhs_is_row, bool conjugate>
inline void AddRowTo(const Block<T>& block, int64_t row, typename Arithmetic<T>::Sum* sum) {
  using W = typename Arithmetic<T>::Sum;
  constexpr int kLanes = VectorOf<W>::kLanes;
  // Independent sums, so that additions overlap; the same number for each instruction set.
  constexpr int kSums = 128 / sizeof(W);
  constexpr int kVectors = kSums / kLanes;
  // After so many products, the sums are reduced to one, which limits rounding errors along a row.
  constexpr int64_t kReduced = 8192;
  const Row<T, W, lhs_is_row> lhs(RowData(block.lhs, row));
  const Row<T, W, rhs_is_row> rhs(RowData(block.rhs, row));
  const int64_t count = block.columns * Arithmetic<T>::kReals;
  for (int64_t i = 0; i < count;) {
    const int64_t end = count - i > kReduced ? i + kReduced : count;
    Vector<W> vectors[kVectors] = {};
    for (; i + kSums <= end; i += kSums) {
      for (int v = 0; v < kVectors; ++v) {
        vectors[v] += Product<T, conjugate, W>(lhs.At(i + v * kLanes), rhs.At(i + v * kLanes));
      }
    }
    for (int v = 0; v < kVectors && i < end; ++v) {
      const int64_t n = end - i < kLanes ? end - i : kLanes;
      vectors[v] += Product<T, conjugate, W>(lhs.LastAt(i, n), rhs.LastAt(i, n));
      i += n;
    }
    W sums[kSums];
    for (int v = 0; v < kVectors; ++v) Store(vectors[v], sums + v * kLanes);
    for (int width = kSums / 2; width >= Arithmetic<T>::kReals; width /= 2) {
      for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
    }
    for (int k = 0; k < Arithmetic<T>::kReals; ++k) sum[k] += sums[k];
  }
}

template <typename T>
void AddToRows(const Block<T>& block, typename Arithmetic<T>::Sum* sums) {
  constexpr int kReals = Arithmetic<T>::kReals;
  WithForm(block, [&](auto lhs, auto rhs, auto conjugate) {
    for (int64_t row = 0; row < block.rows; ++row) {
      AddRowTo<T, lhs.value, rhs.value, conjugate.value>(block, row, sums + row * kReals);
    }
  });
}

template <typename T>
void Round(const typename Arithmetic<T>::Sum* sums, int64_t count, T* out) {
  using W = typename Arithmetic<T>::Sum;
  constexpr int kLanes = VectorOf<W>::kLanes;
  typename Arithmetic<T>::Real* const to = reinterpret_cast<typename Arithmetic<T>::Real*>(out);
  const int64_t reals = count * Arithmetic<T>::kReals;
  int64_t i = 0;
  for (; i + kLanes <= reals; i += kLanes) Store(LoadAs<Vector<W>>(sums + i), to + i);
  if (i < reals) {
    W left[kLanes] = {};
    for (int64_t k = 0; i + k < reals; ++k) left[k] = sums[i + k];
    StoreFirst(LoadAs<Vector<W>>(left), reals - i, to + i);
  }
}

template <typename T>
constexpr BlockKernels<T> kKernels = {MultiplyElements<T>, MultiplyIntoSums<T>, AddToColumns<T>, AddToRows<T>,
                                      Round<T>};
