/* A program shuts down each socket that it has not opened. Its waits sleep, end in time, and report what
 * is there. */
#include "check.h"
#include <linux/netlink.h>

int main(void)
{
	int near[2], set = epoll_create1(0), counter = eventfd(0, EFD_NONBLOCK), fd;
	struct epoll_event event;
	alarm(300);
	/* Where the program may open no such socket, the library's can be shut down. */
	fd = socket(AF_NETLINK, SOCK_DGRAM, NETLINK_USERSOCK);
	if (fd < 0)
		return 77;
	close(fd);
	CHECK(set >= 0 && counter >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, near) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(set, near[0], EPOLLIN, 2) == 0);
	CHECK(epoll_wait(set, &event, 1, 1) == 0);
	for (fd = 3; fd < 1024; fd++)
		if (fd != near[0] && fd != near[1])
			shutdown(fd, SHUT_RDWR);
	CHECK(epoll_wait(set, &event, 1, 300) == 0);
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(epoll_wait(set, &event, 1, 300) == 1 && event.data.u64 == 1);
	return 0;
}
