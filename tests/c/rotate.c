/* EPOLL_ROTATE: sets that watch a rotating set take turns at its source. */
#include "check.h"

#ifdef KERNEL_ONLY
int main(void)
{
	return 77;
}
#else
#include "workers.h"

int main(void)
{
	int fds[2], rotating = epoll_create1(EPOLL_ROTATE | EPOLL_CLOEXEC);
	CHECK(rotating >= 0 && fcntl(rotating, F_GETFD) == FD_CLOEXEC);
	CHECK(pipe2(fds, O_NONBLOCK) == 0);
	start_workers(rotating, fds[0]);
	FAILS(add(rotating, eventfd(0, 0), EPOLLIN, 0), EINVAL);
	write_events(fds[1]);
	end_workers(fds[1]);
	return 0;
}
#endif
