#pragma once
#include <vector>

#include "compile/groups.h"

// Changes of a program: the same values by fewer products and fewer bytes.
namespace tern::compiler {

/// Note [Products over time steps]
/// A recurrent function multiplies few rows at each step with the same weight. Products of one weight of which none needs another one are
/// one, of the rows of many steps: x_t W, and dy_t W^T. So are those that are added to one sum, the gradient of a weight, as one product
/// over the depth of all, and the sums of a bias's gradient. To that end the blocks of results and operands come to lie side by side in one
/// block, each where its neighbour ends; an operand that cannot is copied. The product is where the operands of all are there: calls are
/// reordered as far as their dependences allow.
void merge_products(std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu);

/// Makes attention that is written as products and a softmax, with its gradients, flash attention (kernels::FlashAttention): a query that
/// sees no key gives zeros then, not NaN. Returns the memory from outside whose elements it looked at: masks.
std::vector<Ref<Storage>> use_attention(std::vector<Call>& calls, std::vector<Block>& blocks, Device device);

/// Copies a weight that several products of few rows read, for a CPU, so that its vectors are where a product reads them: one that must
/// turn its weight takes up to twice as long. Every element has the bits that it has without.
void transpose_weights(std::vector<Call>& calls, std::vector<Block>& blocks);

/// Drops copies of what only they read: the kernels that wrote the original write into the copy. So parts of a concatenation, and on a GPU
/// products whose heads are put beside each other, are computed in their place.
void drop_copies(std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu);

/// Makes the tanh-approximated GELU of a linear layer's result an epilogue of its product (kernels::LinearGelu), which on a GPU applies it
/// to 16-bit results before it rounds them.
void use_epilogues(std::vector<Call>& calls, const std::vector<Block>& blocks);

/// Makes sums over the first and the last dimensions, as those of a batch norm, sums of rows, which groups have, and sums of these.
void split_sums(std::vector<Call>& calls, std::vector<Block>& blocks);

/// Note [Recomputation]
/// A backward group reads what a forward group left for it. Where it moves fewer bytes to read what those values are computed from, the
/// group gets copies of their calls, and the values need no memory any more: of a GELU of ops its input is kept, and not the eight values
/// between. Which values of the forward group are read, and which computed again, is a minimum cut of the graph of its calls, with bytes
/// as capacities, between its operands and the values that are read. The order of groups stays; new calls and blocks come last.
void recompute(std::vector<Group>& groups, std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu);

}  // namespace tern::compiler
