/* A signal handler forks in the middle of a fork. The children of both forks have their sets. */
#include "check.h"

#ifdef KERNEL_ONLY
int main(void)
{
	return 77;
}
#else
#include <sys/wait.h>

static int set;
/* Whether the next fork raises a signal. */
static int is_to_come;

/* Checks that the process has a set of its own with the members of its parent's. */
static void look(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u64 == 1);
}

static void end_well(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static pid_t in_handler;

static void forks(int signal)
{
	(void)signal;
	in_handler = fork();
	if (in_handler == 0)
		look();
	else
		end_well(in_handler);
}

/* Registered before the library's handler, so it runs after it. */
static void before(void)
{
	if (!is_to_come)
		return;
	is_to_come = 0;
	CHECK(raise(SIGUSR1) == 0);
}

int main(void)
{
	uint64_t maximum = 4;
	int counter;
	pid_t child;
	CHECK(pthread_atfork(before, NULL, NULL) == 0);
	CHECK(signal(SIGUSR1, forks) != SIG_ERR);
	/* The kernel has no eventfd with a maximum: the child gets a set of its own that watches it. */
	counter = eventfd(0, 0);
	set = epoll_create1(0);
	CHECK(ioctl(counter, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && eventfd_write(counter, 1) == 0);
	alarm(200);
	is_to_come = 1;
	child = fork();
	/* Runs in the parent, in its child, in the handler's child, and in the child of that. */
	look();
	if (child == 0)
		_exit(0);
	end_well(child);
	if (in_handler == 0)
		_exit(0);
	return 0;
}
#endif
