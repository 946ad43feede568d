"""Plausible faults of the C++ sources, and the tests that must notice each.

`inject.py` injects them, one at a time.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """`right` stands once in the file; with `wrong` in its place one of the tests must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


ARITHMETIC = ("kernels/test_embed_grad_kernel.py", "embed_gradient/test_shape_table.py", "kernels/test_contraction.py")
RULES = ("embed_gradient/test_errors.py", "embed_gradient/test_shape_errors.py", "embed_gradient/test_shape_table.py")
WITHOUT_PYTHON = ("graph/test_without_python.py", "graph/test_malformed_gradients.py")
LOST = ("graph/test_harmless.py", "graph/test_without_python.py")
INFERENCE = (
    "graph/test_pruning.py",
    "graph/test_pruning_side_effects.py",
    "graph/test_pruning_malformed.py",
)

FAULTS = (
    Fault(
        "a stride that is one too large",
        "cc/lib/contraction_plan.cc",
        "stride *= dims[i];",
        "stride *= dims[i] + (i == 1);",
        ARITHMETIC,
    ),
    Fault(
        "a group of short sums in which a loop over outputs is not counted",
        "cc/lib/short_sums.cc",
        "if (loop.out != 0) found.folded_size *= loop.size;",
        "if (loop.out != 0 && loop.size > 2) found.folded_size *= loop.size;",
        ARITHMETIC,
    ),
    Fault(
        "short sums that leave out the last of an odd number of columns",
        "cc/lib/short_sums.cc",
        "for (; i < width; ++i) {",
        "for (; i + 1 < width; ++i) {",
        ARITHMETIC,
    ),
    Fault(
        "loops merged although one operand is broadcast along one of them",
        "cc/lib/contraction_plan.cc",
        "outer.rhs == inner.rhs * inner.size &&",
        "",
        ARITHMETIC,
    ),
    Fault(
        "sizes multiplied although one of them is zero, so that they overflow",
        "cc/lib/contraction_plan.cc",
        "if (IsEmpty(iteration_space)) {",
        "if (false) {",
        ("qa/test_sanitizers.py",),
    ),
    Fault(
        "a gradient without the conjugate",
        "cc/kernels/custom_gradient_embed_grad_kernel.cc",
        "/*conjugate=*/attributes_.wrt != kFx",
        "/*conjugate=*/false",
        ARITHMETIC,
    ),
    Fault(
        "a conjugate where the form has none",
        "cc/kernels/custom_gradient_embed_grad_kernel.cc",
        "/*conjugate=*/attributes_.wrt != kFx",
        "/*conjugate=*/true",
        (*ARITHMETIC, "embed_gradient/test_orders.py"),
    ),
    Fault(
        "the output written over an operand that is still read",
        "cc/kernels/embed_grad_plan.cc",
        "if (plan.RhsIsElementwise()) reusable.push_back(1);",
        "reusable.push_back(1);",
        ("kernels/test_embed_grad_kernel.py", "embed_gradient/test_shape_table.py", "qa/test_differential.py"),
    ),
    Fault(
        "x - stop_gradient(x) taken for x",
        "cc/kernels/embed_grad_plan.cc",
        "if (attributes.zero_x) plan.reduction_size = 0;",
        "",
        ("embed_gradient/test_orders.py", "embed_gradient/test_stopping.py"),
    ),
    Fault(
        "the last product of a row left out",
        "cc/lib/block_kernels_inl.h",
        "vectors[v] += Product<T, conjugate, W>(lhs.LastAt(i, n), rhs.LastAt(i, n));",
        "vectors[v] += Product<T, conjugate, W>(lhs.LastAt(i, n - 1), rhs.LastAt(i, n));",
        ARITHMETIC,
    ),
    Fault(
        "the last number of a row left as it was",
        "cc/lib/block_kernels_inl.h",
        "if (i < count) multiply_part(i, count - i);",
        "if (i + 1 < count) multiply_part(i, count - i);",
        ARITHMETIC,
    ),
    Fault(
        "rows read beyond their ends",
        "cc/lib/block_kernels_inl.h",
        "return !operand.is_row || operand.row_step == 0 || operand.row_step == block.columns;",
        "return true;",
        ARITHMETIC,
    ),
    Fault(
        "one row of two left out where rows have gaps",
        "cc/lib/block_kernels_inl.h",
        "const int64_t last = row + kRows - 1;",
        "const int64_t last = row;",
        ARITHMETIC,
    ),
    Fault(
        "groups of short sums cut within a packed row",
        "cc/lib/contraction.cc",
        "const int64_t unit = std::max(ElementsLeftTogether(), folded_->group_size);",
        "const int64_t unit = folded_->group_size;",
        ARITHMETIC,
    ),
    Fault(
        "what was summed up before thrown away",
        "cc/lib/contraction.cc",
        "sums[i] += partial[i];",
        "sums[i] = partial[i];",
        ARITHMETIC,
    ),
    Fault(
        "a block of a sum that begins at the wrong place",
        "cc/lib/contraction.cc",
        "part.rhs_ += first * reduction_loops[cut].rhs;",
        "part.rhs_ += first * reduction_loops[cut].lhs;",
        ARITHMETIC,
    ),
    Fault(
        "columns cut differently by each number of threads",
        "cc/lib/contraction.cc",
        "return packs ? inner.size : 1;",
        "return packs ? 1 : 1;",
        ("kernels/test_contraction.py",),
    ),
    Fault(
        "float32 summed up in float32",
        "cc/lib/arithmetic.h",
        "struct Arithmetic<float> : ArithmeticTypes<float, float, double, 1> {};",
        "struct Arithmetic<float> : ArithmeticTypes<float, float, float, 1> {};",
        ("kernels/test_exact_numbers.py", "kernels/test_embed_grad_kernel.py"),
    ),
    Fault(
        "an axis just beyond the rank accepted",
        "cc/lib/alignment.cc",
        "value < -rank || value >= rank",
        "value < -rank || value > rank",
        RULES,
    ),
    Fault(
        "an axis given twice accepted",
        "cc/lib/alignment.cc",
        "if ((*is_event)[dimension]) return DuplicateAxis(names, dimension, axis, x);",
        "",
        RULES,
    ),
    Fault(
        "a scalar value accepted for every broadcast",
        "cc/lib/alignment.cc",
        "fx.empty() && MayEqual(result.iteration_space, x);",
        "fx.empty();",
        RULES,
    ),
    Fault(
        "operands aligned from the left",
        "cc/lib/alignment.cc",
        "dims->insert(dims->begin(), rank - dims->size(), 1);",
        "dims->insert(dims->end(), rank - dims->size(), 1);",
        RULES,
    ),
    Fault(
        "a derivative of x's rank laid along the batch",
        "cc/lib/alignment.cc",
        "gx.size() >= x.size() ? gx",
        "gx.size() > x.size() ? gx",
        RULES,
    ),
    Fault(
        "a value whose shape is not compared with that of x",
        "cc/kernels/custom_gradient_embed_kernel.cc",
        "fx == gx && fx == x) continue;",
        "fx == gx) continue;",
        RULES,
    ),
    Fault(
        "a gradient that claims the shape of its operand",
        "cc/ops/custom_gradient_embed_grad_op.cc",
        "context->set_output(0, out);",
        "context->set_output(0, context->input(0));",
        ("kernels/test_shape_functions.py", "embed_gradient/test_shape_table.py"),
    ),
    Fault(
        "results forwarded in the place of others",
        "cc/kernels/forward_kernel.cc",
        "context->set_output(i, context->input(i))",
        "context->set_output(i, context->input(0))",
        ("kernels/test_op_contract.py",),
    ),
    Fault(
        "a gradient of a wrong shape let through at run time",
        "cc/kernels/custom_gradient_check_shape_kernel.cc",
        "OP_REQUIRES(context, gradient == expected,",
        "OP_REQUIRES(context, gradient == gradient,",
        ("custom_gradient/test_errors.py",),
    ),
    Fault(
        "XLA: a gradient without the conjugate",
        "cc/xla/xla_kernels.cc",
        "if (attributes_.wrt != kFx) right = xla::MaybeConjugate(right, true);",
        "",
        ("graph/test_xla.py", "embed_gradient/test_shape_table.py"),
    ),
    Fault(
        "XLA: x - stop_gradient(x) taken for x",
        "cc/xla/xla_kernels.cc",
        "if (attributes_.zero_x || IsEmpty(iteration_space)) {",
        "if (IsEmpty(iteration_space)) {",
        ("graph/test_xla.py", "embed_gradient/test_orders.py"),
    ),
    Fault(
        "XLA: a barrier that nothing waits for",
        "cc/xla/xla_kernels.cc",
        "context->SetOutput(i, xla::Select(ready, value, xla::ZerosLike(value)));",
        "context->SetOutput(i, value);",
        ("graph/test_xla.py", "custom_gradient/test_variants.py"),
    ),
    Fault(
        "without Python: gradients stopped where they are not, and the other way round",
        "cc/gradients/function_gradients.cc",
        "if (form.manually_stopped) {\n    function.Return(dy",
        "if (!form.manually_stopped) {\n    function.Return(dy",
        WITHOUT_PYTHON,
    ),
    Fault(
        "without Python: x taken for zero in its own derivative",
        "cc/gradients/function_gradients.cc",
        "zero_x && role != kX",
        "zero_x",
        WITHOUT_PYTHON,
    ),
    Fault(
        "without Python: the upstream gradient of another result",
        "cc/gradients/function_gradients.cc",
        "arguments.push_back(dys[i]);",
        "arguments.push_back(dys[0]);",
        WITHOUT_PYTHON,
    ),
    Fault(
        "without Python: a gradient that is lost in a loop is not refused",
        "cc/passes/refuse_lost_gradients.cc",
        "if (search.FindsOpInControlFlowOf(function))",
        "if (false)",
        LOST,
    ),
    Fault(
        "without Python: gradients are refused where there is no loop",
        "cc/passes/op_search.h",
        "Finds({function, /*counts=*/false})",
        "Finds({function, /*counts=*/true})",
        LOST,
    ),
    Fault(
        "the pass: what the op waited for is no longer waited for",
        "cc/passes/prune_gradients.cc",
        "for (Node* effect : effects) graph->AddControlEdge(effect, identity);",
        "",
        INFERENCE,
    ),
    Fault(
        "the pass: an assignment to a reference is dropped",
        "cc/passes/prune_gradients.cc",
        "if (node.IsControlFlow() || TakesOrReturnsReference(node)) return false;",
        "if (node.IsControlFlow()) return false;",
        INFERENCE,
    ),
    Fault(
        "the pass: a value that runs where its op did not",
        "cc/passes/prune_gradients.cc",
        "if (node.IsControlFlow() || TakesOrReturnsReference(node)) return false;",
        "if (TakesOrReturnsReference(node)) return false;",
        ("graph/test_pruning_side_effects.py",),
    ),
    Fault(
        "the pass: one result that runs where another does not",
        "cc/passes/prune_gradients.cc",
        "const bool is_other = !edge->IsControlEdge() && edge->dst_input() != output;",
        "const bool is_other = !edge->IsControlEdge() && edge->dst_input() >= op.num_outputs();",
        ("graph/test_harmless.py",),
    ),
    Fault(
        "the pass: the graph of a session does not know the functions that were made for it",
        "cc/passes/prune_gradients.cc",
        "if (&graph_->flib_def() != library_)",
        "if (false)",
        ("graph/test_pruning.py",),
    ),
    Fault(
        "the pass: the side effects of a conditional that nobody reads are lost",
        "cc/passes/prune_gradients.cc",
        "return !is_function && (!runs_functions || IsPure(node));",
        "return !is_function;",
        ("graph/test_pruning_side_effects.py",),
    ),
    Fault(
        "XLA: the products of a sum are rounded to float32",
        "cc/xla/xla_kernels.cc",
        "is_narrow ? xla::F32 : xla::F64;",
        "is_narrow ? xla::F32 : type;",
        ("kernels/test_backends_agree.py",),
    ),
    Fault(
        "built-in ops: the products of a sum are rounded to their own type",
        "cc/kernels/composed_embed_grad.cc",
        "const DataType product = steps.sum ? types.sum : types.operand;",
        "const DataType product = types.operand;",
        ("kernels/test_backends_agree.py",),
    ),
    Fault(
        "CUDA: the last part of a sum left out",
        "cuda/schedule.cc",
        "layout->parts = CeilDivide(layout->reduction_items, layout->part_items);",
        "layout->parts = std::max<int64_t>(layout->reduction_items / layout->part_items, 1);",
        ("kernels/test_cuda_kernels.py",),
    ),
    Fault(
        "CUDA: packs read across the ends of rows",
        "cuda/schedule.cc",
        "schedule.is_vectorized = operands_are_aligned && (rows_are_whole_vectors || may_end_within_vector);",
        "schedule.is_vectorized = operands_are_aligned;",
        ("kernels/test_cuda_kernels.py",),
    ),
    Fault(
        "CUDA: 32-bit indices where they overflow",
        "cuda/schedule.cc",
        "sums - 1}) <= kMaxNarrowIndex;",
        "sums - 1}) <= 4 * kMaxNarrowIndex;",
        ("kernels/test_cuda_forms.py",),
    ),
)
