/* A signal handler forks after each instruction of a call that opens an fd. The child continues the
 * call, and its forks take no longer than usual. */
#include "check.h"

#if defined(KERNEL_ONLY) || defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
/* AddressSanitizer's own locks may be held when the handler forks. */
int main(void)
{
	return 77;
}
#else
#include "../preload/steps.h"
#include <sys/wait.h>

static long countdown;
static volatile int has_fired;
static volatile pid_t child;

static void forks(int signal, siginfo_t *info, void *context)
{
	int status;
	(void)signal, (void)info;
	if (--countdown > 0)
		return;
	has_fired = 1;
	end_steps_of(context);
	child = fork();
	if (child > 0)
		CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A fork that waits for a change that is over waits for a second each time. On a busy machine a
 * single fork may take that long, but not all of them. */
static void fork_soon(void)
{
	int round, status;
	for (round = 0; round < 20; round++) {
		double begun = now();
		pid_t process = fork();
		if (process == 0)
			_exit(0);
		CHECK(process > 0 && waitpid(process, &status, 0) == process && status == 0);
		if (now() - begun < 0.5)
			return;
	}
	CHECK(!"a fork is soon over");
}

int main(void)
{
	struct sigaction action;
	long at;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = forks;
	action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	has_fired = 1;
	for (at = 1; has_fired; at++) {
		int fd;
		countdown = at, has_fired = 0;
		begin_steps();
		fd = eventfd(0, 0);
		end_steps();
		CHECK(fd >= 0 && close(fd) == 0);
		if (has_fired && child == 0) {
			fork_soon();
			_exit(0);
		}
	}
	return 0;
}
#endif
