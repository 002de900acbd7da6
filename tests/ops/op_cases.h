#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reference.h"
#include "tensor/tensor.h"

namespace tern::op_cases {

/// Note [The table]: every public function of src/ops/*.h is a Row. A row lists concrete cases, each with its inputs,
/// the call and a float64 reference written in plain loops, and the mistakes that the op must refuse. All else follows
/// from the row: the checks in op_forward_test.cpp, op_gradients_test.cpp, op_errors_test.cpp, op_devices_test.cpp and
/// op_cuda_test.cpp run over the whole table.

/// The description of one input. Its values depend on the shape and the index of the input only.
struct Input {
  Shape shape;
  double low = -2, high = 2;       ///< the range of the values; integers are whole numbers in [low, high)
  std::optional<DType> dtype;      ///< a fixed dtype; none: that of the run
  std::vector<double> kinks = {};  ///< values from which the elements keep a distance of 0.1
  bool distinct = false;           ///< no two elements are equal or close
  bool whole = false;              ///< whole numbers in floats too, so that some are equal
  bool differentiable = true;      ///< check the gradient, for a floating dtype
  bool edited = false;             ///< the op writes it
  bool optional = false;           ///< may be undefined
};

inline Input value(const Shape& shape, double low = -2, double high = 2) { return {shape, low, high}; }
inline Input positive(const Shape& shape) { return {shape, 0.3, 2.5}; }
inline Input index(const Shape& shape, std::int64_t bound) { return {shape, 0, static_cast<double>(bound), DType::i64}; }
inline Input truth(const Shape& shape) { return {shape, 0, 2, DType::boolean}; }
inline Input distinct(const Shape& shape) {
  Input input{shape};
  input.distinct = true;
  return input;
}
inline Input whole(const Shape& shape, double low = -2, double high = 2) {
  Input input{shape, low, high};
  input.whole = true;
  return input;
}
inline Input edited(const Shape& shape) {
  Input input{shape};
  input.edited = true;
  return input;
}

/// Arguments of a call.
struct Arguments {
  Tensors inputs;
  DType dtype;    ///< dtype of the run
  Device device;  ///< device of the inputs, and of ops without inputs
  const Tensor& operator[](std::size_t i) const { return inputs[i]; }
};
using Call = std::function<Tensors(const Arguments&)>;

/// Arguments of a reference: the inputs' values as the dtype holds them.
struct References {
  reference::Arrays inputs;
  DType dtype;
  const reference::Array& operator[](std::size_t i) const { return inputs[i]; }
};
using Reference = std::function<reference::Arrays(const References&)>;

// Short names for the lambdas of rows.
using In = const Arguments&;
using Ref = const References&;
using T = const Tensor&;
using A = const reference::Array&;

struct Case {
  std::vector<Input> inputs;
  Call call;
  Reference reference;
  std::vector<DType> dtypes = {};  ///< dtypes of the case; empty: the row's
  bool twice = true;
};

/// A call that must throw Error with a message that starts with the op's name and contains these texts.
struct Mistake {
  std::function<void()> call;
  std::vector<std::string> contains = {};
  std::string shown_name = {};  ///< name of the op in the message; empty: the row's
};

inline const std::vector<DType> floats = {DType::f64, DType::f32, DType::f16, DType::bf16};
inline const std::vector<DType> numbers = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};
inline const std::vector<DType> all_dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                              DType::i32, DType::i64, DType::u8,  DType::boolean};
inline const std::vector<DType> integers = {DType::i32, DType::i64, DType::u8};

struct Row {
  std::string name;  ///< of the public function
  std::vector<Case> cases;
  std::vector<Mistake> mistakes = {};
  std::vector<DType> dtypes = floats;
  double slack = 1;        ///< on the error of the arithmetic: f64, or f32, in which 16-bit floats are summed; see Note [Tolerances]
  double roundings = 1.5;  ///< to 16 bits: of the result, and of what the op keeps in 16 bits on the way
  double gradient_roundings = 5;
  bool differentiable = true;
  bool twice = true;
  bool on_cuda_bitwise = false;       ///< floats, too, are the same on both devices
  bool on_cuda_in_any_order = false;  ///< on a GPU the op adds in no fixed order: two calls differ in their last bits
  bool on_cuda_by_16_bits = false;    ///< on a GPU products take operands of 16 bits, also where a result is f32
  std::string shown_name = {};        ///< in messages, where it is not the function's name
  bool is_plain = false;              ///< of plain()
};

/// The row of an op with fused kernels where it is composed of others (PlainKernels): a row of its own, with the same cases.
Row plain(Row row);
/// The op's composition in f64 as a reference of large cases, for which loops would take too long. The plain row tests it in small ones.
Reference composed(Call call);

/// Note [Large cases]: how an op divides its work shows in sizes that would take too long in each dtype. Cases of more than large elements
/// run in one dtype, and on a GPU in one of 16 bits as well. Those of more than huge_case are for the kernels of a GPU alone, and
/// contiguous.
constexpr std::int64_t large_case = 20000, huge_case = 100000;
bool is_huge(const Case& op);
/// The dtypes in which a case runs on a device; none: it does not.
std::vector<DType> dtypes_of(const Row& row, const Case& op, Device device = cpu);

/// Element counts that matter: none, one, below and above a vector or a warp, above a block.
inline const std::vector<std::int64_t> sizes = {0, 1, 31, 33, 1025};

// A row to copy. With ops/<family>.h declaring Tensor hypot(const Tensor& a, const Tensor& b), in op_cases_<family>.cpp:
//
//   Row row{"hypot", {}};                                         // the function's name
//   for (std::int64_t n : sizes)                                  // all sizes must occur, as a dimension or a count
//     row.cases.push_back({{value({3, n}), value({n})},           // the inputs: shapes, and how to fill them; here b is broadcast
//                          [](const Arguments& in) -> Tensors { return {hypot(in[0], in[1])}; },
//                          [](const References& in) {             // in float64, in plain loops (reference.h), without calling an op
//                            return one(zip(in[0], in[1], in.dtype, [](double a, double b) { return std::hypot(a, b); }));
//                          }});
//   row.roundings = 2;                                            // only if it keeps 16-bit floats on the way; Note [Tolerances]
//   row.mistakes = {{[] { hypot(sample({2}), sample({3})); }, {"(2,)", "(3,)"}},       // each error, with words of its message
//                   {[] { hypot(sample({2}, DType::boolean), sample({2})); }, {"bool"}}};
//   rows.push_back(row);
//
// An op with fused kernels has two rows: rows.push_back(row), and rows.push_back(plain(row)).
//
// Run it alone with TERN_OP=hypot test-ops "Ops *,*erivatives*,Mistakes*". Its gradients of both orders, dtypes, layouts, guard bytes and
// the GPU need no further line.

using Rows = std::vector<Row>;
void add_pointwise(Rows& rows);   // op_cases_pointwise.cpp
void add_compare(Rows& rows);     // op_cases_compare.cpp
void add_unary(Rows& rows);       // op_cases_unary.cpp
void add_reduce(Rows& rows);      // op_cases_reduce.cpp
void add_view(Rows& rows);        // op_cases_view.cpp
void add_index(Rows& rows);       // op_cases_index.cpp
void add_products(Rows& rows);    // op_cases_products.cpp
void add_normalize(Rows& rows);   // op_cases_normalize.cpp
void add_conv(Rows& rows);        // op_cases_conv.cpp
void add_attention(Rows& rows);   // op_cases_attention.cpp
void add_factory(Rows& rows);     // op_cases_factory.cpp
void add_quantize(Rows& rows);    // op_cases_quantize.cpp
void add_indexing(Rows& rows);    // op_cases_indexing.cpp
void add_statistics(Rows& rows);  // op_cases_statistics.cpp
void add_linalg(Rows& rows);      // op_cases_linalg.cpp
void add_images(Rows& rows);      // op_cases_convolution.cpp
void add_resample(Rows& rows);    // op_cases_resample.cpp
void add_batch_norm(Rows& rows);  // op_cases_batch_norm.cpp
void add_recurrent(Rows& rows);   // op_cases_recurrent.cpp

/// The table: every row, assembled in op_cases.cpp.
const Rows& table();

/// The tensor that an Input describes, contiguous, on the CPU.
Tensor make_input(const Input& input, DType dtype, std::size_t position);
/// A tensor's elements in float64, read through to_vector.
reference::Array read(const Tensor& x);
/// Note [Tolerances]: a result may be off by relative * (scale + |expected|) + absolute, where scale is the largest magnitude in the
/// expected tensor, between 0.25 (of terms near 1, which may cancel) and 1. One factor for all dtypes would let errors of 100% pass in bf16
/// where float32 needs room for a long sum: a row's slack is for the arithmetic, and roundings to the storage type are counted. The test
/// "... what is spoilt is refused" shows that less is allowed than a wrong factor, sign or element makes.
struct Tolerance {
  double relative = 0, absolute = 0;
  Tolerance operator*(double factor) const;
};
Tolerance tolerance(DType dtype, double slack, double roundings);
Tolerance forward_tolerance(const Row& row, DType dtype);
Tolerance gradient_tolerance(const Row& row, DType dtype);

/// "" where a result is what the reference says, within the tolerance; else the first difference. Without a tolerance, bit for bit.
std::string difference(const reference::Array& got, const reference::Array& want, const Tolerance& tolerance);
std::string difference(const Tensor& got, const reference::Array& want, const Tolerance& tolerance);
std::string difference(const Tensor& got, const Tensor& want, const Tolerance& tolerance);
/// "exp #3 f16 (33,)", for messages.
std::string describe(const Row& row, const Case& op, std::size_t number, DType dtype);

/// Shorthand for rows: a reference of one output, zeros of a shape.
inline reference::Arrays one(reference::Array y) { return {std::move(y)}; }
Tensor sample(const Shape& shape, DType dtype = DType::f32);

/// An input's elements in a place that is harder to read: a window in a larger storage that is filled with a guard
/// value.
enum class Layout { contiguous, offset, apart, transposed, stepped, reversed };  ///< apart: rows with gaps, as slices of columns
inline const std::vector<Layout> layouts = {Layout::contiguous, Layout::offset,  Layout::apart,
                                            Layout::transposed, Layout::stepped, Layout::reversed};
const char* name(Layout layout);
Tensor with_layout(const Tensor& x, Layout layout);
/// The bytes of x's storage outside x, or all of them.
std::vector<unsigned char> guard_bytes(const Tensor& x);
std::vector<unsigned char> storage_bytes(const Tensor& x);

}  // namespace tern::op_cases
