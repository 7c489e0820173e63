/* A set of upoll in a loop that knows only kernel fds, here by poll(2).
 *
 * cc set_in_poll.c $(pkg-config --cflags --libs upoll) -pthread -o set_in_poll */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <upoll.h>

static void check(int is_so, const char *what)
{
	if (!is_so) {
		perror(what);
		exit(1);
	}
}

static void *count(void *counter)
{
	check(upoll_eventfd_write(*(int *)counter, 3) == 0, "counting");
	return NULL;
}

int main(void)
{
	int set = upoll_epoll_create1(EPOLL_CLOEXEC), counter = upoll_eventfd(0, EFD_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = counter}, events[8];
	eventfd_t value = 0;
	pthread_t thread;

	check(set >= 0 && counter >= 0, "opening");
	check(upoll_epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0, "adding");
	check(pthread_create(&thread, NULL, count, &counter) == 0, "a thread");
	/* ANCHOR: loop */
	struct pollfd fds[] = {{.fd = upoll_epoll_fd(set), .events = POLLIN}};

	check(fds[0].fd >= 0, "upoll_epoll_fd");
	while (value == 0) {
		int at, found;

		/* The C library's poll. Other fds stand beside it. */
		check(poll(fds, 1, -1) == 1, "poll");
		found = upoll_epoll_wait(set, events, 8, 0);
		for (at = 0; at < found; at++)
			check(upoll_eventfd_read(events[at].data.fd, &value) == 0, "reading");
	}
	close(fds[0].fd);
	/* ANCHOR_END: loop */
	pthread_join(thread, NULL);
	printf("counted to %llu\n", (unsigned long long)value);
	return upoll_close(counter) != 0 || upoll_close(set) != 0;
}
