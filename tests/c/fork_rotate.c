/* fork(2) and rotating sets: the workers of the parent go on to take turns, while their source, a pipe,
 * is one that the child has, too. */
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
	int fds[2], rotating = epoll_create1(EPOLL_ROTATE), status;
	pid_t child;
	CHECK(pipe2(fds, O_NONBLOCK) == 0);
	start_workers(rotating, fds[0]);
	child = fork();
	if (child == 0) {
		FAILS(epoll_wait(sets[0], &event, 1, 0), EBADF);
		FAILS(add(rotating, fds[0], EPOLLIN, 0), EBADF);
		CHECK(close(sets[0]) == 0 && close(rotating) == 0);
		/* One of its own over what it shares. */
		rotating = epoll_create1(EPOLL_ROTATE);
		CHECK(add(rotating, fds[1], EPOLLOUT, 7) == 0);
		CHECK(epoll_wait(rotating, &event, 1, 0) == 1 && event.data.u64 == 7);
		write_events(fds[1]);
		_exit(0);
	}
	FAILS(upoll_demote(rotating), EOPNOTSUPP);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	end_workers(fds[1]);
	return 0;
}
#endif
