/* epoll_ctl_batch applies changes in one call, up to the first that fails. */
#include "check.h"

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	struct epoll_ctl_cmd cmds[3];
	struct epoll_event events[4];
	int at, epfd = epoll_create1(0), fds[2];
	CHECK(sizeof(struct epoll_ctl_cmd) == 32);
	CHECK(pipe(fds) == 0);
	memset(cmds, 0, sizeof cmds);
	for (at = 0; at < 3; at++) {
		cmds[at].op = EPOLL_CTL_ADD;
		cmds[at].fd = at == 2 ? fds[1] : eventfd(1, 0);
		cmds[at].events = EPOLLIN | EPOLLOUT;
		cmds[at].data = (uint64_t)at;
		cmds[at].result = 99;
	}
	FAILS(epoll_ctl_batch(epfd, 1, 3, cmds), EINVAL);
	FAILS(epoll_ctl_batch(epfd, 0, 0, cmds), EINVAL);
	FAILS(epoll_ctl_batch(epfd, 0, -1, cmds), EINVAL);
	FAILS(epoll_ctl_batch(epfd, 0, 1 << 30, cmds), EINVAL);
	FAILS(epoll_ctl_batch(epfd, 0, 3, NULL), EINVAL);
	FAILS(epoll_ctl_batch(epfd, 0, 3, nowhere()), EFAULT);
	CHECK(cmds[0].result == 99);
	CHECK(epoll_ctl_batch(epfd, 0, 3, cmds) == 3);
	CHECK(cmds[0].result == 0 && cmds[2].result == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 3);
	cmds[0].op = EPOLL_CTL_DEL;
	cmds[2].result = 99;
	CHECK(epoll_ctl_batch(epfd, 0, 3, cmds) == 1);
	CHECK(cmds[0].result == 0 && cmds[1].result == -EEXIST && cmds[2].result == 99);
	cmds[1].flags = 1;
	CHECK(epoll_ctl_batch(epfd, 0, 1, cmds + 1) == 0);
	CHECK(cmds[1].result == -EINVAL);
	cmds[1].flags = 0;
	CHECK(epoll_ctl_batch(-1, 0, 1, cmds + 1) == 0 && cmds[1].result == -EBADF);
	return 0;
#endif
}
