/* Two threads make the first objects of a process concurrently. A child that is forked later has
 * all objects that it must have. */
#include "check.h"

#ifdef KERNEL_ONLY
int main(void)
{
	return 77;
}
#else
#include <stdatomic.h>
#include <sys/wait.h>

static atomic_int ready;
static int counters[2];

static void *makes(void *place)
{
	ready++;
	while (ready < 2)
		;
	*(int *)place = eventfd(0, 0);
	return NULL;
}

/* Runs in a process that has no objects yet. */
static void make_and_fork(void)
{
	pthread_t threads[2];
	struct epoll_event event;
	uint64_t maximum = 4;
	int at, set, status;
	pid_t child;
	for (at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, makes, &counters[at]) == 0);
	for (at = 0; at < 2; at++)
		CHECK(pthread_join(threads[at], NULL) == 0 && counters[at] >= 0);
	/* The kernel has no eventfd with a maximum: the child gets a set of its own that watches it. */
	set = epoll_create1(0);
	CHECK(ioctl(counters[0], EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	CHECK(add(set, counters[0], EPOLLIN, 1) == 0 && eventfd_write(counters[0], 1) == 0);
	child = fork();
	if (child == 0) {
		CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u64 == 1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	int round, status;
	for (round = 0; round < 100; round++) {
		pid_t process = fork();
		CHECK(process >= 0);
		if (process == 0) {
			make_and_fork();
			_exit(0);
		}
		CHECK(waitpid(process, &status, 0) == process && status == 0);
	}
	return 0;
}
#endif
