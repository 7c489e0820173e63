/* The order of the checks in epoll_ctl(2) and epoll_wait(2). */
#include "check.h"

int main(void)
{
	struct epoll_event event = {EPOLLIN, {0}}, events[2];
	int epfd = epoll_create1(EPOLL_CLOEXEC), fd = eventfd(0, 0), other = epoll_create(1);
	/* Not in a program's part of the address space. */
	struct epoll_event *beyond = (struct epoll_event *)(uintptr_t)-4096;
	int fds[2], kernels[2], file = open("/dev/null", O_RDONLY);
	CHECK(epfd >= 0 && fd >= 0 && other >= 0 && file >= 0);
	CHECK(pipe(fds) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, kernels) == 0);
	FAILS(epoll_create(0), EINVAL);
	FAILS(epoll_create1(2), EINVAL);
	FAILS(epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event), EBADF);
	FAILS(epoll_ctl(999, EPOLL_CTL_ADD, -1, &event), EBADF);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, 999, &event), EBADF);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, file, &event), EPERM);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, file, &event), EPERM);
	FAILS(epoll_ctl(epfd, 77, file, &event), EPERM);
	FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, file, &event), EPERM);
	FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, 999, &event), EBADF);
	FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, epfd, &event), EINVAL);
	FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, kernels[0], &event), EINVAL);
	FAILS(epoll_ctl(file, EPOLL_CTL_ADD, fd, &event), EINVAL);
	FAILS(epoll_ctl(fds[0], EPOLL_CTL_ADD, fds[1], &event), EINVAL);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, epfd, &event), EINVAL);
	FAILS(epoll_ctl(epfd, 77, fd, &event), EINVAL);
	FAILS(epoll_ctl(epfd, 77, kernels[0], &event), EINVAL);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event), ENOENT);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, &event), ENOENT);
	CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event), EEXIST);
	CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, other, &event) == 0);
	FAILS(epoll_ctl(other, EPOLL_CTL_ADD, epfd, &event), ELOOP);
	event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, fds[0], &event), EINVAL);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_MOD, fds[0], &event), EINVAL);

	FAILS(epoll_wait(-1, events, 0, 0), EBADF);
	FAILS(epoll_wait(epfd, events, 0, 0), EINVAL);
	FAILS(epoll_wait(epfd, events, -1, 0), EINVAL);
	FAILS(epoll_wait(epfd, events, 178956971, 0), EINVAL);
	FAILS(epoll_wait(fd, events, 1, 0), EINVAL);
	FAILS(epoll_wait(fds[0], events, 1, 0), EINVAL);
	FAILS(epoll_wait(file, events, 1, 0), EINVAL);
	/* The number of events, their address, and the kind of the file. */
	FAILS(epoll_wait(epfd, beyond, 0, 0), EINVAL);
	FAILS(epoll_wait(epfd, beyond, 1, 0), EFAULT);
	FAILS(epoll_wait(fd, beyond, 0, 0), EINVAL);
	FAILS(epoll_wait(fd, beyond, 1, 0), EFAULT);
	CHECK(epoll_wait(epfd, events, 2, 0) == 0);
	FAILS(read(epfd, events, 8), EINVAL);
	FAILS(write(epfd, events, 8), EINVAL);
	return 0;
}
