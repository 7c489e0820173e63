/* Errors that the man pages name and no other test here covers. */
#include "check.h"

#include <sys/syscall.h>

#ifndef KERNEL_ONLY
static uint32_t nothing(void *context)
{
	(void)context;
	return 0;
}
#endif

int main(void)
{
	int fds[2], pair[2], kernels_set, epfd = epoll_create1(0), fd = eventfd(0, EFD_NONBLOCK);
	char byte = 'x';

	CHECK(pipe(fds) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	FAILS(shutdown(900, SHUT_WR), EBADF);
	FAILS(shutdown(pair[0], 9), EINVAL);
	CHECK(write(pair[0], &byte, 1) == 1 && close(pair[1]) == 0);
	CHECK(write(fds[1], &byte, 1) == 1);
	FAILS(pipe2(nowhere(), 0), EFAULT);
	FAILS(fcntl(fd, 9999), EINVAL);
	FAILS(fcntl(900, F_GETFL), EBADF);
	FAILS(ioctl(900, FIONREAD, &byte), EBADF);
	FAILS(close_range(900, 899, 0), EINVAL);
	FAILS(select(-1, NULL, NULL, NULL, NULL), EINVAL);
	FAILS(poll(nowhere(), 1, 0), EFAULT);
	FAILS(readv(fds[0], NULL, -1), EINVAL);
	FAILS(readv(fds[0], NULL, 1025), EINVAL);
	/* The other end closes with unread bytes. */
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(write(pair[0], &byte, 1) == 1 && close(pair[1]) == 0);
	FAILS(read(pair[0], &byte, 1), ECONNRESET);
#ifdef KERNEL_ONLY
	(void)kernels_set;
	(void)epfd;
#else
	{
		uint64_t maximum = 5;
		struct upoll_object_ops ops = {sizeof ops, nothing, NULL};
		struct epoll_wait_params params = {0};
		struct epoll_ctl_cmd command = {0, EPOLL_CTL_ADD, 900, EPOLLIN, 0, 0};
		struct epoll_event event;
		int object = upoll_object_create(&ops, NULL, O_CLOEXEC);

		CHECK(object >= 0);
		ops.size--;
		FAILS(upoll_object_create(&ops, NULL, 0), EINVAL);
		ops.size++;
		ops.poll = NULL;
		FAILS(upoll_object_create(&ops, NULL, 0), EINVAL);
		FAILS(upoll_object_wake(fd, EPOLLIN), EINVAL);

		FAILS(ioctl(900, EFD_IOC_SET_MAXIMUM, &maximum), EBADF);
		FAILS(ioctl(fds[0], EFD_IOC_SET_MAXIMUM, &maximum), ENOTTY);
		FAILS(ioctl(object, EFD_IOC_GET_MAXIMUM, &maximum), ENOTTY);
		FAILS(ioctl(epfd, EFD_IOC_GET_MAXIMUM, &maximum), EINVAL);
		maximum = 0;
		FAILS(ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum), EINVAL);

		FAILS(upoll_demote(900), EBADF);
		FAILS(upoll_demote(object), EOPNOTSUPP);
		FAILS(upoll_demote(epoll_create1(EPOLL_ROTATE)), EOPNOTSUPP);
		maximum = 5;
		CHECK(ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
		FAILS(upoll_demote(fd), EOPNOTSUPP);

		/* The first command finds that fd is not a set. */
		CHECK(epoll_ctl_batch(fd, 0, 1, &command) == 0 && command.result == -EBADF);
		command.fd = fds[0];
		CHECK(epoll_ctl_batch(fd, 0, 1, &command) == 0 && command.result == -EINVAL);

		kernels_set = (int)syscall(SYS_epoll_create1, 0);
		CHECK(kernels_set >= 0);
		FAILS(epoll_ctl(kernels_set, EPOLL_CTL_ADD, object, &event), EPERM);
		params.clockid = CLOCK_TAI;
		FAILS(epoll_pwait1(kernels_set, 0, &event, 1, &params), EINVAL);
		params.clockid = CLOCK_MONOTONIC;
		FAILS(epoll_pwait1(900, 0, &event, 1, &params), EBADF);
		/* valgrind has no epoll_pwait2, which waits in a set without user-level members. */
		CHECK(add(epfd, object, EPOLLIN, 0) == 0);
		params.size = 1;
		FAILS(epoll_pwait1(epfd, 0, &event, 1, &params), EINVAL);
		params.size = sizeof params;
		params.sigmask = nowhere();
		params.sigsetsize = 8;
		FAILS(epoll_pwait1(epfd, 0, &event, 1, &params), EFAULT);
		params.sigsetsize = 4;
		FAILS(epoll_pwait1(epfd, 0, &event, 1, &params), EINVAL);
		params.sigmask = NULL;
		FAILS(epoll_pwait1(epfd, 0, &event, 0, &params), EINVAL);
		FAILS(epoll_pwait1(fd, 0, &event, 1, &params), EINVAL);
	}
#endif
	return 0;
}
