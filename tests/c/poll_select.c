/* poll(2) and select(2) of eventfds, pipes, sets and kernel files in any combination. */
#include "check.h"

int main(void)
{
	uint64_t value;
	int counter = eventfd(0, 0), epfd = epoll_create1(0), kernel = open("/dev/zero", O_RDONLY);
	int fds[2], n, closed = 900;
	struct pollfd list[6];
	fd_set in, out;
	struct timeval time;
	struct timespec soon = {0, 20000000};
	sigset_t mask;
	CHECK(pipe(fds) == 0);
	CHECK(add(epfd, counter, EPOLLIN, 0) == 0);
	memset(list, 0, sizeof list);
	list[0].fd = counter;
	list[1].fd = epfd;
	list[2].fd = fds[0];
	list[3].fd = fds[1];
	list[4].fd = -5;
	list[5].fd = counter;
	for (n = 0; n < 6; n++)
		list[n].events = POLLIN;
	list[4].revents = 77;
	CHECK(poll(list, 6, 20) == 0);
	CHECK(list[4].revents == 0);
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(poll(list, 6, -1) == 3);
	CHECK(list[0].revents == POLLIN && list[1].revents == POLLIN && list[5].revents == POLLIN);
	list[2].fd = kernel;
	list[3].events = POLLOUT;
	CHECK(poll(list, 6, -1) == 5);
	CHECK(list[2].revents == POLLIN && list[3].revents == POLLOUT);
	list[3].fd = closed;
	CHECK(poll(list, 6, -1) == 5 && list[3].revents == POLLNVAL);
	FAILS(poll(list, 1u << 30, 0), EINVAL);
	sigemptyset(&mask);
	CHECK(ppoll(list, 1, &soon, &mask) == 1);
	CHECK(eventfd_read(counter, &value) == 0);
	CHECK(ppoll(list, 1, &soon, &mask) == 0);
	CHECK(soon.tv_nsec == 20000000);

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(counter, &in);
	FD_SET(counter, &out);
	FD_SET(epfd, &in);
	FD_SET(kernel, &in);
	n = kernel + 1;
	time.tv_sec = 0;
	time.tv_usec = 1200000;
	CHECK(select(n, &in, &out, NULL, &time) == 2);
	CHECK(FD_ISSET(kernel, &in) && !FD_ISSET(counter, &in) && !FD_ISSET(epfd, &in));
	CHECK(FD_ISSET(counter, &out));
	CHECK(time.tv_sec == 1 || time.tv_usec > 900000);
	FD_ZERO(&in);
	FD_SET(counter, &in);
	time.tv_sec = 0;
	time.tv_usec = 20000;
	CHECK(select(n, &in, NULL, NULL, &time) == 0);
	CHECK(!FD_ISSET(counter, &in) && time.tv_sec == 0 && time.tv_usec == 0);
	FD_SET(counter, &in);
	CHECK(close(fds[0]) == 0);
	FD_SET(fds[0], &in);
	FAILS(select(fds[1] + 1, &in, NULL, NULL, &time), EBADF);
	CHECK(FD_ISSET(counter, &in) && FD_ISSET(fds[0], &in));
	FD_CLR(fds[0], &in);
	/* The pipe has no reader any more: the write end is readable and writable at once. */
	FD_ZERO(&out);
	FD_SET(fds[1], &in);
	FD_SET(fds[1], &out);
	CHECK(pselect(fds[1] + 1, &in, &out, NULL, &soon, &mask) == 2);
	time.tv_usec = -1;
	FAILS(select(n, &in, NULL, NULL, &time), EINVAL);
	return 0;
}
