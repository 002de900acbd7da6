#pragma once
#include "program.h"

namespace study::loops {

/// The elements of each of the caller's tensors, in the program's order.
using Values = std::vector<std::vector<double>>;

/// Values of the inputs, uniform in [-2, 2), of which f32 has each; NaN for the outputs.
Values make_values(const Program& program, unsigned seed = 1);

/// Runs a program statement by statement, in f64: the oracle of all schedules. Threads, blocks and cores take their turns, the last one
/// first. Each tensor lies between red zones of NaN, and a local one is NaN before it is written. Throws Error if the program writes
/// outside of a tensor, or an output's element never or twice, or takes more than 10^7 steps.
Values interpret(const Program& program, Values values);

/// Runs the kernel under the lines at small odd sizes, by the interpreter, and compares with the kernel without a schedule. Throws Error
/// with the first wrong element. Returns the largest relative difference.
double check_schedule(const std::string& kernel_name, const std::function<Program(const Program&)>& scheduled);

/// The largest |x - y| / (|y| + root mean square of y); throws Error that names the first element with more than `limit`.
double compare(const std::string& name, const std::vector<double>& x, const std::vector<double>& y, double limit);

/// How often a program reaches its statements, guarded ones included: the time that interpret() takes grows with it.
double statements_run(const Program& program);

}  // namespace study::loops
