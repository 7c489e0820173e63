/* A batch adds an eventfd that parent and child share to a set. A child still finds the set's
 * kernel members. */
#include "check.h"
#include <sys/wait.h>

#ifndef KERNEL_ONLY

static void joins(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Checks that this is the only ready member of the set. */
static void shows(int epfd, uint64_t data)
{
	struct epoll_event events[4];
	CHECK(epoll_wait(epfd, events, 4, 0) == 1);
	CHECK(events[0].events == EPOLLIN && events[0].data.u64 == data);
}

#endif

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	struct epoll_ctl_cmd command;
	uint64_t maximum = 4;
	int shared = eventfd(0, EFD_NONBLOCK), own, epfd, sockets[2];
	pid_t child;

	CHECK(ioctl(shared, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(0);
	joins(child);

	/* The set is user-level, and has no kernel member yet. */
	own = eventfd(0, 0);
	epfd = epoll_create1(0);
	CHECK(own >= 0 && add(epfd, own, EPOLLIN, 1) == 0);
	memset(&command, 0, sizeof command);
	command.op = EPOLL_CTL_ADD;
	command.fd = shared;
	command.events = EPOLLIN;
	command.data = 2;
	CHECK(epoll_ctl_batch(epfd, 0, 1, &command) == 1 && command.result == 0);
	CHECK(epoll_ctl_batch(epfd, 0, 1, &command) == 0 && command.result == -EEXIST);
	CHECK(eventfd_write(shared, 1) == 0);
	shows(epfd, 2);

	/* A kernel member, the only one that is left at the fork. */
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
	CHECK(add(epfd, sockets[0], EPOLLIN, 3) == 0);
	command.op = EPOLL_CTL_DEL;
	CHECK(epoll_ctl_batch(epfd, 0, 1, &command) == 1 && command.result == 0);
	CHECK(write(sockets[1], "x", 1) == 1);
	shows(epfd, 3);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		shows(epfd, 3);
		_exit(0);
	}
	joins(child);
	shows(epfd, 3);
	return 0;
#endif
}
