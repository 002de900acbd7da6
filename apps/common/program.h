#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace tern::apps {

/// Parses the arguments, runs the subcommand's callback, and returns the exit code: 0, 2 for a mistake of the user's
/// (an unknown option, a bad file, an impossible size), 1 for everything else (no memory, a full disk, a fault of
/// ours), and 128 + N for a stop in good order by signal N. `--version` prints the program's name and version, whether CUDA is built in,
/// and which processors the kernels are for. An error is one line on stderr that starts with the program's name; `memory_hint` ends the one
/// for too little memory.
int run(CLI::App& app, int argc, char** argv, const std::string& memory_hint);

/// "; did you mean --epochs?", or "" where none of the known words is close.
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

/// A fault in what the user asked for, found before any work is done.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The argument of CLI11's check(): "" for a text that is allowed, else what was expected and what came.
using Check = std::function<std::string(const std::string&)>;
Check whole_number(std::int64_t low, std::int64_t high);
Check real_number(double low, double high);
Check one_of(std::vector<std::string> words);
/// @{
/// Numbers of things, of which there is one or more, or may be none. The upper ends only keep absurd values from arithmetic and allocation.
Check positive_count();
Check count_or_none();
/// @}
/// Seeds up to 2^53, which every reader of JSON keeps exactly.
Check seed_value();
/// True, False and their likes in any case; and nothing, which is how a bare `--name` arrives.
Check truth_value();
bool is_true(const std::string& text);

/// `--device cpu|cuda|cuda:N|auto`: adds the option, and later gives the device; each process that a launcher has started takes the GPU of
/// its local rank. Throws UsageError for a GPU that does not answer.
void add_device_option(CLI::App& command, std::string& device);
Device resolve_device(const std::string& device);
/// "cuda:0" or "2 CPU threads".
std::string describe(Device device);
/// "fused kernels", and on a GPU ", each step one CUDA graph".
std::string describe_step(bool use_fused_kernel, Device device);

/// `--threads N`. Without it `threads` stays 0, and one thread works for each processor.
void add_threads_option(CLI::App& command, int& threads);

/// `--name`, `--name True`, `--name=false`: a switch that takes a value as well.
CLI::Option* add_switch(CLI::App& command, const std::string& name, const std::string& help, const std::function<void(bool)>& set);

/// Throws UsageError where an option that names a directory is empty.
void require_named(const std::string& option, const std::string& directory);
/// Makes the directory that an option names, and its parents. Throws UsageError.
void make_directory(const std::string& option, const std::filesystem::path& directory);

/// Seconds of a clock that never goes back.
double seconds_now();
/// "1 h 05 min", "3 min 20 s", "45 s".
std::string duration(double seconds);
/// "1 layer", "2 layers".
std::string counted(std::int64_t count, const std::string& noun);

}  // namespace tern::apps
