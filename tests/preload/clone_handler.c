/* A signal handler makes objects while its thread is about to make a child that shares its memory.
 * Objects that the child opens in its own fd table still do not exist in the parent. */
#include "../c/check.h"
#include <sched.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { ROUNDS = 60, COUNTERS = 200 };

static char stack[1 << 18] __attribute__((aligned(16)));
static volatile int made;

static void handler(int signal)
{
	int counter = eventfd(1, 0);
	(void)signal;
	CHECK(counter >= 0 && close(counter) == 0);
}

static int makes(void *unused)
{
	(void)unused;
	made = eventfd(5, 0);
	return made >= 0 ? 7 : 8;
}

int main(void)
{
	int round, status, child, zero, at, counters[COUNTERS];
	uint64_t value;
	CHECK(signal(SIGALRM, handler) != SIG_ERR);
	for (round = 0; round < ROUNDS; round++) {
		struct itimerval time = {{0, 0}, {0, 100 * (round % 20) + 20}};
		for (at = 0; at < COUNTERS; at++)
			CHECK((counters[at] = eventfd(1, 0)) >= 0);
		CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
		child = clone(makes, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
		CHECK(child > 0);
		while (waitpid(child, &status, 0) != child)
			CHECK(errno == EINTR);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
		zero = open("/dev/zero", O_RDONLY);
		CHECK(zero == made);
		CHECK(read(zero, &value, sizeof value) == sizeof value && value == 0);
		CHECK(close(zero) == 0);
		for (at = 0; at < COUNTERS; at++)
			CHECK(close(counters[at]) == 0);
	}
	return 0;
}
