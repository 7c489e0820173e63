/* A wait with room for very many events takes memory only for those that it reports. */
#include "check.h"

#define ROOM (1 << 20)

int main(void)
{
	const size_t size = ROOM * sizeof(struct epoll_event);
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct timespec at_once = {0, 0};
	unsigned char is_there;
	int ready = eventfd(1, 0), epfd = epoll_create1(0), sockets[2], turn;
	struct epoll_event *events = mmap(NULL, size, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *last = (char *)events + size / page * page - page;

	CHECK(events != MAP_FAILED);
	/* On a system without huge pages the call fails. */
	(void)madvise(events, size, MADV_NOHUGEPAGE);
	CHECK(add(epfd, ready, EPOLLIN, 1) == 0);
	for (turn = 1; turn <= 2; turn++) {
		CHECK(epoll_wait(epfd, events, ROOM, 0) == turn);
		CHECK(epoll_wait(epfd, events, ROOM, -1) == turn);
		CHECK(epoll_pwait2(epfd, events, ROOM, &at_once, NULL) == turn);
		CHECK(mincore(last, page, &is_there) == 0 && !(is_there & 1));
		/* With a kernel member as well. */
		CHECK(turn == 2 || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
		CHECK(turn == 2 || add(epfd, sockets[0], EPOLLOUT, 2) == 0);
	}
	return 0;
}
