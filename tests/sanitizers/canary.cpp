// canary KIND: makes the mistake that a sanitizer is there to find. If the program gets to its end, that sanitizer is
// asleep, and a clean run of the other tests means nothing.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

int main(int argc, char** argv) {
  const char* kind = argc > 1 ? argv[1] : "";
  // Neither a number that comes from outside nor a volatile pointer can be seen through by the compiler, which would
  // remove the mistake, or by UBSan, which would find the one that is meant for ASan.
  const int one = argc - 1;
  if (std::strcmp(kind, "address") == 0) {
    volatile char* volatile block = new char[8];
    block[8 * one] = 1;
    delete[] block;
  } else if (std::strcmp(kind, "undefined") == 0) {
    volatile int largest = std::numeric_limits<int>::max();
    largest = largest + one;
  } else if (std::strcmp(kind, "leak") == 0) {
    [[maybe_unused]] void* volatile lost = std::malloc(100);
    lost = nullptr;
    return 0;  // found at the exit
  } else if (std::strcmp(kind, "race") == 0) {
    volatile int shared = 0;
    std::thread other([&] { shared = shared + one; });
    shared = shared + one;
    other.join();
  }
  std::puts("survived");
}
