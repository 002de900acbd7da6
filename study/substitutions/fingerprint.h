#pragma once
#include <cstdint>
#include <vector>

#include "substitutions/terms.h"

namespace tern::substitutions {

// Note [Fingerprints]
// A term is computed exactly, on random matrices whose elements are of a finite field Z_p, at three sizes, and its elements are hashed.
// Terms of equal fingerprints are candidates; that terms of different values agree by chance does not happen in practice (Schwartz-Zippel:
// about degree / 2^31 for each element). Two fields have to agree, so that nothing holds because of one prime: the number p is 0 in Z_p.
//
//   p = 2 q + 1, both prime. An element is a pair: its value in Z_p, and its value in Z_q, for exponents.
//   add sub mul div matmul sum scale    in both; division by 0 gives 0
//   exp                                 g^x, g of order q, x the value in Z_q: exp(a + b) = exp a exp b. The result has no value in Z_q
//   sqrt                                x^((p + 1) / 4), a root for squares, which inputs are: sqrt(a b) = sqrt a sqrt b, sqrt(a a) = a
//   rsqrt                               1 / sqrt
//   max maxr relu                       the larger one by a random total order of the field: max is associative and max(a, a) = a
//   log, exp without a value in Z_q     a random function: found are only equal functions of equal arguments
//   widen narrow                        nothing
//
// So what is not found: that log is the inverse of exp, that exp, sqrt or a positive factor keep an order (max(exp a, exp b)), that relu
// and max are a - relu(a - b), and two levels of exp. What is found and false in floats is the judge's.

/// Hash of a term's values; terms of other types have others. `fields`: how many of the two primes are used.
std::uint64_t fingerprint(const Terms& terms, Id id, int fields = 2);
/// The fingerprints of all terms of a table, whose largest ones begin at `last`: values of the others are kept meanwhile. By threads.
std::vector<std::uint64_t> fingerprints(const Terms& terms, Id last);

}  // namespace tern::substitutions
