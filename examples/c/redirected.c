/* A program for epoll(7), with two lines more.
 *
 * cc redirected.c $(pkg-config --cflags --libs upoll) -o redirected */
/* ANCHOR: include */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
/* After all other headers: from here on the C library's names mean upoll's functions. */
#define UPOLL_REDIRECT
#include <upoll.h>
/* ANCHOR_END: include */

/* ANCHOR: main */
int main(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), counter = eventfd(0, EFD_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = counter};
	eventfd_t count = 0;

	if (epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) != 0 || eventfd_write(counter, 3) != 0)
		return 1;
	if (epoll_wait(set, &event, 1, -1) != 1 || event.data.fd != counter)
		return 1;
	if (eventfd_read(counter, &count) != 0 || epoll_wait(set, &event, 1, 0) != 0)
		return 1;
	printf("counted to %llu\n", (unsigned long long)count);
	return close(counter) != 0 || close(set) != 0;
}
/* ANCHOR_END: main */
