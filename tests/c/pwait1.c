/* epoll_pwait1: a wait with a choice of clocks. */
#include "check.h"

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	struct epoll_wait_params params;
	struct epoll_event event;
	struct timespec time = {0, 20000000}, start, end;
	int clocks[2] = {CLOCK_MONOTONIC, CLOCK_REALTIME}, at;
	int epfd = epoll_create1(0), fd = eventfd(0, 0);
	CHECK(add(epfd, fd, EPOLLIN, 5) == 0);
	memset(&params, 0, sizeof params);
	params.size = sizeof params;
	params.timeout = &time;
	for (at = 0; at < 2; at++) {
		params.clockid = clocks[at];
		clock_gettime(CLOCK_MONOTONIC, &start);
		CHECK(epoll_pwait1(epfd, 0, &event, 1, &params) == 0);
		clock_gettime(CLOCK_MONOTONIC, &end);
		CHECK((end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec
		      >= 19000000);
	}
	/* A set without user-level members, which the kernel serves. */
	params.clockid = CLOCK_REALTIME;
	CHECK(epoll_pwait1(epoll_create1(0), 0, &event, 1, &params) == 0);
	FAILS(epoll_pwait1(epfd, 1, &event, 1, &params), EINVAL);
	FAILS(epoll_pwait1(epfd, 0, &event, 1, NULL), EFAULT);
	FAILS(epoll_pwait1(epfd, 0, &event, 0, &params), EINVAL);
	FAILS(epoll_pwait1(-1, 0, &event, 1, &params), EBADF);
	params.clockid = CLOCK_BOOTTIME;
	FAILS(epoll_pwait1(epfd, 0, &event, 1, &params), EINVAL);
	params.clockid = CLOCK_MONOTONIC;
	params.size = 3;
	FAILS(epoll_pwait1(epfd, 0, &event, 1, &params), EINVAL);
	params.size = sizeof params;
	params.timeout = (struct timespec *)nowhere();
	FAILS(epoll_pwait1(epfd, 0, &event, 1, &params), EFAULT);
	params.timeout = NULL;
	CHECK(eventfd_write(fd, 1) == 0);
	CHECK(epoll_pwait1(epfd, 0, &event, 1, &params) == 1 && event.data.u64 == 5);
	return 0;
#endif
}
