/* Fault signals that the program has blocked stay blocked while it changes fds. */
#include "../c/check.h"

int main(void)
{
	static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
	int fd = eventfd(0, 0), copy;
	sigset_t mask, pending;
	size_t at;
	CHECK(fd >= 0);
	sigemptyset(&mask);
	for (at = 0; at < sizeof FAULTS / sizeof *FAULTS; at++)
		sigaddset(&mask, FAULTS[at]);
	CHECK(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
	for (at = 0; at < sizeof FAULTS / sizeof *FAULTS; at++)
		CHECK(raise(FAULTS[at]) == 0);
	copy = dup(fd);
	CHECK(copy >= 0 && dup2(copy, fd) == fd && close(copy) == 0 && close(fd) == 0);
	CHECK(sigpending(&pending) == 0);
	for (at = 0; at < sizeof FAULTS / sizeof *FAULTS; at++)
		CHECK(sigismember(&pending, FAULTS[at]) == 1);
	return 0;
}
