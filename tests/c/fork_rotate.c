/* fork(2) and rotating sets: the parent's workers still take turns. The child has sets of its own
 * in place of the parent's, which watch the same files. */
#include "check.h"

#ifdef KERNEL_ONLY
int main(void)
{
	return 77;
}
#else
#include "workers.h"
#include <sys/wait.h>

int main(void)
{
	struct epoll_event event;
	uint64_t maximum = 4;
	int fds[2], rotating = epoll_create1(EPOLL_ROTATE), status;
	int counter = eventfd(0, 0), counting = epoll_create1(EPOLL_ROTATE), counts = epoll_create1(0);
	pid_t child;
	CHECK(pipe2(fds, O_NONBLOCK) == 0);
	CHECK(ioctl(counter, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	CHECK(add(counting, counter, EPOLLIN, 0) == 0 && add(counts, counting, EPOLLIN, 8) == 0);
	start_workers(rotating, fds[0]);
	child = fork();
	if (child == 0) {
		/* The child's own sets: without waiting threads they take no events from the parent's. */
		CHECK(epoll_wait(sets[0], &event, 1, 0) == 0);
		FAILS(add(rotating, fds[0], EPOLLIN, 0), EEXIST);
		/* The set rotates: it has one source already. */
		FAILS(add(rotating, fds[1], EPOLLOUT, 0), EINVAL);
		CHECK(epoll_ctl(rotating, EPOLL_CTL_DEL, fds[0], NULL) == 0);
		CHECK(add(rotating, fds[1], EPOLLOUT, 0) == 0);
		CHECK(epoll_wait(sets[1], &event, 1, 0) == 1 && event.events == EPOLLIN);
		CHECK(close(sets[0]) == 0 && close(rotating) == 0);
		/* Both processes share the count of the source. */
		CHECK(epoll_wait(counts, &event, 1, 0) == 0 && eventfd_write(counter, 1) == 0);
		CHECK(epoll_wait(counts, &event, 1, 60000) == 1 && event.data.u64 == 8);
		/* A rotating set of the child with a shared source. */
		rotating = epoll_create1(EPOLL_ROTATE);
		CHECK(add(rotating, fds[1], EPOLLOUT, 7) == 0);
		CHECK(epoll_wait(rotating, &event, 1, 0) == 1 && event.data.u64 == 7);
		write_events(fds[1]);
		_exit(0);
	}
	FAILS(upoll_demote(rotating), EOPNOTSUPP);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(epoll_wait(counts, &event, 1, 60000) == 1 && event.data.u64 == 8);
	end_workers(fds[1]);
	return 0;
}
#endif
