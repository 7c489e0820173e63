/* Parent and child share the objects that a pthread_atfork handler of the program makes, and those
 * of a signal handler during the fork. */
#include "check.h"

#include <sys/wait.h>

static int ends[2], sockets[2], counter, copy, set;
static int is_to_make;

/* Registered before the library's handler, so it runs after it. */
static void make(void)
{
	if (!is_to_make)
		return;
	is_to_make = 0;
	CHECK(pipe(ends) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	CHECK((counter = eventfd(0, 0)) >= 0);
	CHECK((copy = dup(counter)) >= 0);
	CHECK((set = epoll_create1(0)) >= 0);
	CHECK(add(set, ends[0], EPOLLIN, 1) == 0);
}

int main(void)
{
	struct epoll_event event;
	char byte;
	int status;
	pid_t child;
	CHECK(pthread_atfork(make, NULL, NULL) == 0);
	CHECK(close(eventfd(0, 0)) == 0);
	is_to_make = 1;
	child = fork();
	if (child == 0) {
		CHECK(write(ends[1], "x", 1) == 1);
		CHECK(write(sockets[1], "x", 1) == 1);
		CHECK(eventfd_write(copy, 1) == 0);
		CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u64 == 1);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u64 == 1);
	CHECK(read(ends[0], &byte, 1) == 1 && read(sockets[0], &byte, 1) == 1);
	CHECK(poll(&(struct pollfd){counter, POLLIN, 0}, 1, 0) == 1);
	return 0;
}
