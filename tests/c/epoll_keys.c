/* The key of an interest is an open file and an fd. dup(2) makes a second key, and an interest
 * whose fd is closed stays as long as another fd keeps the file open. */
#include "check.h"

static void watches(int first)
{
	struct epoll_event events[4];
	uint64_t value;
	int epfd = epoll_create1(0), copy = dup(first), again;
	CHECK(copy >= 0);
	CHECK(add(epfd, first, EPOLLIN, 1) == 0);
	CHECK(add(epfd, copy, EPOLLIN, 2) == 0);
	CHECK(eventfd_write(first, 1) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 2);
	CHECK(events[0].data.u64 + events[1].data.u64 == 3);
	CHECK(close(copy) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 2);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, copy, NULL), EBADF);
	again = eventfd(1, 0);
	CHECK(again == copy);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, again, NULL), ENOENT);
	CHECK(add(epfd, again, EPOLLIN, 4) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 3);
	CHECK(eventfd_read(first, &value) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 1 && events[0].data.u64 == 4);
	CHECK(close(again) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 0);
	CHECK(eventfd_write(first, 1) == 0);
	CHECK(close(first) == 0);
	CHECK(epoll_wait(epfd, events, 4, 0) == 0);
	CHECK(close(epfd) == 0);
}

int main(void)
{
	struct epoll_event event;
	int epfd, copy;
	watches(eventfd(0, 0));
	/* A duplicate of a set is the same set. */
	epfd = epoll_create1(0);
	copy = fcntl(epfd, F_DUPFD_CLOEXEC, 100);
	CHECK(copy == 100 && fcntl(copy, F_GETFD) == FD_CLOEXEC);
	CHECK(add(copy, eventfd(1, 0), EPOLLIN, 7) == 0);
	CHECK(close(copy) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 1 && event.data.u64 == 7);
	return 0;
}
