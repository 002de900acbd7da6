// Preloaded into a program, this cuts its TCP connections when SIGUSR2 comes: each peer sees them end, and so does the program.
#include <sys/socket.h>

#include <cerrno>
#include <csignal>

extern "C" {
static void cut(int) {
  const int before = errno;
  constexpr int most = 1024;
  for (int descriptor = 3; descriptor < most; ++descriptor) {
    int domain = 0;
    socklen_t size = sizeof domain;
    if (::getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6))
      ::shutdown(descriptor, SHUT_RDWR);
  }
  errno = before;
}

__attribute__((constructor)) static void install() {
  struct sigaction action{};
  action.sa_handler = cut;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
}
}
