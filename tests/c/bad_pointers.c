/* A pointer to unmapped memory fails with EFAULT. A read of an eventfd takes its value
 * nevertheless. */
#include "check.h"

static const void *const TOO_HIGH = (const void *)-8L;

int main(void)
{
	char *bad = nowhere();
	uint64_t value = 1;
	int fds[2], lowest, fd = eventfd(1, EFD_NONBLOCK), epfd = epoll_create1(0);
	struct epoll_event event = {EPOLLIN, {0}};
	struct iovec list[2] = {{bad, 8}, {bad, 8}};
	struct pollfd entry = {fd, POLLIN, 0};
	struct timespec never = {0, 1000000000}, soon = {0, 0};
	FAILS(write(fd, bad, 8), EFAULT);
	FAILS(write(fd, NULL, 8), EFAULT);
	FAILS(write(fd, TOO_HIGH, 4), EFAULT);
	FAILS(read(fd, (void *)TOO_HIGH, 8), EFAULT);
	FAILS(read(fd, bad, 8), EFAULT);
	FAILS(read(fd, &value, 8), EAGAIN);
	CHECK(eventfd_write(fd, 1) == 0);
	FAILS(writev(fd, list, 1), EFAULT);
	FAILS(writev(fd, (struct iovec *)bad, 1), EFAULT);
	FAILS(readv(fd, list, 1025), EINVAL);
	FAILS(readv(fd, list, -1), EINVAL);
	CHECK(readv(fd, list, 0) == 0);

	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, NULL), EFAULT);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_ADD, -1, (void *)bad), EFAULT);
	FAILS(epoll_ctl(epfd, 77, -1, (void *)bad), EFAULT);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL), ENOENT);
	CHECK(epoll_wait(epfd, (void *)bad, 4, 0) == 0);
	CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event) == 0);
	FAILS(epoll_wait(epfd, (void *)bad, 4, 0), EFAULT);
	FAILS(epoll_wait(epfd, (void *)bad, 4, -1), EFAULT);
	FAILS(epoll_wait(epfd, NULL, 4, 0), EFAULT);
	FAILS(epoll_wait(epfd, (void *)TOO_HIGH, 4, 0), EFAULT);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 1);
	FAILS(epoll_pwait(epfd, &event, 1, 0, (sigset_t *)bad), EFAULT);
	FAILS(epoll_pwait2(epfd, &event, 1, (struct timespec *)bad, NULL), EFAULT);
	FAILS(epoll_pwait2(epfd, &event, 1, &never, NULL), EINVAL);
	CHECK(epoll_pwait2(epfd, &event, 1, &soon, NULL) == 1);

	FAILS(poll((struct pollfd *)bad, 1, 0), EFAULT);
	CHECK(poll(NULL, 0, 0) == 0);
	FAILS(ppoll(&entry, 1, &never, NULL), EINVAL);
#ifndef KERNEL_ONLY
	/* glibc itself reads the timeout. */
	FAILS(ppoll(&entry, 1, (struct timespec *)bad, NULL), EFAULT);
#endif
	FAILS(ppoll(&entry, 1, NULL, (sigset_t *)bad), EFAULT);
	FAILS(select(fd + 1, (fd_set *)bad, NULL, NULL, NULL), EFAULT);
	FAILS(select(-1, NULL, NULL, NULL, NULL), EINVAL);

	CHECK(pipe(fds) == 0);
	FAILS(write(fds[1], bad, 8), EFAULT);
	CHECK(write(fds[1], NULL, 0) == 0);
	CHECK(write(fds[1], "x", 1) == 1);
	FAILS(read(fds[0], bad, 8), EFAULT);
	CHECK(read(fds[0], &value, 8) == 1);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	/* The fds are free again if they could not be stored. */
	lowest = dup(0);
	CHECK(close(lowest) == 0);
	FAILS(pipe((int *)bad), EFAULT);
	FAILS(socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)bad), EFAULT);
	CHECK(dup(0) == lowest);
	return 0;
}
