/* cc example.c $(pkg-config --cflags --libs upoll) -o example */
#include <stdio.h>
#include <upoll.h>

int main(void)
{
	struct epoll_event event = {0};
	int epfd = upoll_epoll_create1(EPOLL_CLOEXEC);
	int counter = upoll_eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	eventfd_t count = 0;

	event.events = EPOLLIN;
	event.data.fd = counter;
	if (epfd < 0 || counter < 0 || upoll_epoll_ctl(epfd, EPOLL_CTL_ADD, counter, &event) != 0) {
		perror("setting up");
		return 1;
	}
	upoll_eventfd_write(counter, 3);
	if (upoll_epoll_wait(epfd, &event, 1, -1) != 1 || event.data.fd != counter) {
		perror("waiting");
		return 1;
	}
	upoll_eventfd_read(counter, &count);
	printf("counted to %llu\n", (unsigned long long)count);
	upoll_close(counter);
	upoll_close(epfd);
	return 0;
}
